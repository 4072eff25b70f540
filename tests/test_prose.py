"""What a machine can see of plain English: short sentences in the documentation, and no habits of the house."""

import re
from collections.abc import Iterator

import pytest

from tests.torchserve_process import ROOT

MOST_WORDS = 30
HABITS = re.compile(r"\b(whoever|so it is with|what becomes of|as it comes|as ever|goes? on as ever)\b", re.IGNORECASE)
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("docs/**/*.md"), *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")))
)
CODE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
MARK = re.compile(r"^(?:[-*+]|\d+\.|#+|>|!!!.*|\?\?\?.*|===.*)\s*")
HEADING = re.compile(r"^(#+ .*)$", re.MULTILINE)
END = re.compile(r"(?<=[.!?:;])[*_\"')\]]*\s+|\s—\s")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page, and the cells of its tables; code, comments and addresses left out."""
    text = LINK.sub(r"\1", HEADING.sub(r"\1\n", COMMENT.sub("", CODE.sub("", text))))
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.|\||#|>)\s?)", text):
        lines = " ".join(MARK.sub("", line.strip()) for line in paragraph.splitlines())
        for part in lines.split("|") if lines.startswith("|") else [lines]:
            yield from (each.strip() for each in END.split(part) if each.strip())


def num_words(sentence: str) -> int:
    return len([word for word in re.sub(r"`[^`]*`", "code", sentence).split() if any(map(str.isalnum, word))])


@pytest.mark.parametrize("page", PAGES)
def test_no_sentence_is_long(page: str) -> None:
    long = [
        f"{num_words(each)}: {each}" for each in sentences((ROOT / page).read_text()) if num_words(each) > MOST_WORDS
    ]
    assert long == [], f"split them; at most {MOST_WORDS} words"


@pytest.mark.parametrize("page", PAGES)
def test_no_habit_is_left(page: str) -> None:
    assert HABITS.findall((ROOT / page).read_text()) == []


def test_long_ones_are_seen() -> None:
    text = "Short. Word " + "word " * 30 + ".\n\n```sh\n" + "code " * 40 + "\n```\n\n- " + "item " * 31 + "\n"
    assert [num_words(each) > MOST_WORDS for each in sentences(text)] == [False, True, True]
