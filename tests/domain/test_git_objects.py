"""Labels that can be names of files in a git repository."""

from ricordo.domain.git_objects import fits_git


def test_what_means_something_to_git_is_no_label_and_other_words_are() -> None:
    for label in (
        *(".git/x", ".GIT", ".git./x", ".git /x", ".git:x/y", "a/.gitmodules/x", ".GitAttributes/x"),
        *("git~1", "GI7EBA~1/x", "a\\b", ".g\u200cit/x", "human.md/more"),
    ):
        assert not fits_git(label), label
    for label in ("human", "courses/week 1", "..git", ".gitter", "Übung", "human.md", "a~1", "git"):
        assert fits_git(label), label
