"""Teachers: pages of courses, and the students of a course.

Teachers see numbers of each student, and the blocks that the student's own block lets them see.
"""
