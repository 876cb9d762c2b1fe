"""Teachers: pages of courses, and the students of a course.

Teachers see figures about each student, and the blocks that the student shows them.
"""
