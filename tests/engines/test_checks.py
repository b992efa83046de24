"""The caption check: what it refuses, by the right name, and what it must let pass."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.config import Checks
from smalti.engines.checks import check_caption
from smalti.reasons import CaptionFault
from tests.engines.captions_bad import BAD, DOG, KITCHEN, SHORT
from tests.engines.captions_good import WRITTEN, made

RULES = Checks(min_words=40, language="en")


def refused(captions: list[str]) -> list[tuple[CaptionFault, str]]:
    found = [(check_caption(caption, "stop", RULES), caption) for caption in captions]
    return [(fault, caption) for fault, caption in found if fault is not None]


@pytest.mark.parametrize("at", range(len(BAD)), ids=[f"{fault}-{at}" for at, (fault, _, _) in enumerate(BAD)])
def test_a_planted_fault_is_called_by_its_name(at: int) -> None:
    fault, finish, text = BAD[at]
    assert check_caption(text, finish, RULES) is fault


def test_every_fault_is_planted_more_than_once() -> None:
    planted = Counter(fault for fault, _, _ in BAD)
    assert {fault: planted[fault] for fault in CaptionFault if planted[fault] < 3} == {}


def test_what_the_bad_captions_are_made_of_is_good() -> None:
    assert refused([KITCHEN, DOG]) == []
    assert check_caption(SHORT, "stop", Checks(min_words=1)) is None


@pytest.mark.parametrize("at", range(len(WRITTEN)))
def test_a_caption_that_only_looks_faulty_passes(at: int) -> None:
    assert check_caption(WRITTEN[at], "stop", RULES) is None


def test_of_a_thousand_good_captions_five_may_be_refused() -> None:
    captions = made(20240229, 1000)
    assert all(60 <= len(caption.split()) <= 200 for caption in captions)
    wrong = refused(captions)
    print(f"refused {len(wrong)} of {len(captions)}:", *wrong, sep="\n")
    assert len(wrong) <= 5


def test_the_same_seed_makes_the_same_captions() -> None:
    assert made(7, 20) == made(7, 20) != made(8, 20)


FAULTY = {
    CaptionFault.LEAKED_TOKENS: "<|im_end|>",
    CaptionFault.REFUSAL: "I'm sorry, but I can't say more.",
    CaptionFault.MARKUP: "The **dog** is wet.",
    CaptionFault.LOOPING: "It runs, and it runs, and it runs, and it runs, and it runs.",
    CaptionFault.WRONG_LANGUAGE: "画面右侧有一棵高大的树，树下坐着一位女士。",
    CaptionFault.CUT_OFF: "Behind it there is a",
}
"""Each is one fault at the end of a good caption; CUT_OFF last, where it is at the end of the others, too."""


def test_of_several_faults_the_first_counts() -> None:
    """In the order of the enum, in which a report counts them."""
    order = list(CaptionFault)
    tail = ""
    for fault in sorted(FAULTY, key=order.index, reverse=True):
        if fault is not CaptionFault.CUT_OFF:
            tail = f"{FAULTY[fault]} {tail}"
            finish = "length" if order.index(fault) < order.index(CaptionFault.CUT_OFF) else "stop"
            assert check_caption(f"{DOG} {tail}", finish, RULES) is fault
    assert check_caption(f"{FAULTY[CaptionFault.WRONG_LANGUAGE]} {DOG}", "length", RULES) is CaptionFault.CUT_OFF
    assert check_caption(SHORT[:-1], "stop", RULES) is CaptionFault.CUT_OFF


@pytest.mark.parametrize(
    ("quoted", "fault"),
    [
        ("<|im_start|>assistant", CaptionFault.LEAKED_TOKENS),
        ("I'm sorry, but I can't describe this picture", CaptionFault.REFUSAL),
        ("**bold**, <b>HTML</b> and # a heading", CaptionFault.MARKUP),
        (f"a{' tree, a house, a tree, a house, a' * 4} tree", CaptionFault.LOOPING),
        ("请勿在此处停放自行车，违者将被拖走并罚款二百元", CaptionFault.WRONG_LANGUAGE),
    ],
)
def test_a_fault_in_quotation_marks_is_none(quoted: str, fault: CaptionFault) -> None:
    for left, right in ("“”", '""', "«»", "„“", "「」", "‘’" if "'" not in quoted else "“”"):
        assert check_caption(f"{KITCHEN} A poster shows {left}{quoted}{right} in blue.", "stop", RULES) is None
    assert check_caption(f"{KITCHEN} A poster shows {quoted} in blue.", "stop", RULES) is fault


def test_a_caption_that_stands_in_quotation_marks_as_a_whole_is_no_quotation() -> None:
    assert check_caption(f"“{KITCHEN}”", "stop", RULES) is None
    assert check_caption(f"“{KITCHEN} I cannot describe more.”", "stop", RULES) is CaptionFault.REFUSAL


def test_any_language_passes_where_none_is_asked_for() -> None:
    french = next(text for fault, _, text in BAD if fault is CaptionFault.WRONG_LANGUAGE and text.startswith("L'image"))
    assert check_caption(french, "stop", RULES) is CaptionFault.WRONG_LANGUAGE
    assert check_caption(french, "stop", Checks(min_words=30, language=None)) is None


def test_the_least_length_is_the_profiles() -> None:
    words = len(DOG.split())
    assert check_caption(DOG, "stop", Checks(min_words=words)) is None
    assert check_caption(DOG, "stop", Checks(min_words=words + 2)) is CaptionFault.TOO_SHORT


@given(st.text(), st.sampled_from(["stop", "length"]))
def test_no_text_makes_trouble(text: str, finish: str) -> None:
    fault = check_caption(text, finish, RULES)
    assert fault is not None or text.split()  # a random text may pass; an empty one never


HOSTILE = (
    "“a ", ' "a', " 'a", "'a'b", "« ", "„", "‚a", "``", "''a", " *a", "**a ", " _A", " _a b", "<a ", "</x", "<a_", "<i ", "|a", "||",
    "#", "# ", " #a", "\n", "\n\n ", "\n \t", ". ", ". \n", "!", "1. ", "12", "(1", "[10,10", "[1, ", '{"', "}]", "a", "ab", "Aa ",
    "I ", "I very ", "But it is ", "Image type ", "\nAa bb cc ", "\\n", "中", "a中", "é", "the cat ", "www.", "a.com/", "😀", "“” ",
    "&#1", "•", "Sure ", "abcdefgh", "no image was ", "here is ", "the user wants for a ", "e.g. ", "▁", "Ġ", " .", "d'", "le ",
)  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
def test_time_grows_with_the_text_and_no_faster(unit: str) -> None:
    """20 kB of what patterns like to go back over; anything quadratic takes ten seconds and more."""
    text = f"A good start. {unit * (20_000 // len(unit))}"
    for whole in (text, f"{text} x"):
        start = time.process_time()
        check_caption(whole, "stop", RULES)
        assert time.process_time() - start < 1


def test_a_caption_takes_a_few_tenths_of_a_millisecond() -> None:
    captions = made(3, 200)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        refused(captions)
        seconds.append(time.process_time() - start)
    assert min(seconds) / len(captions) < 0.002  # 0.5 ms where this was written; a busy machine may take longer
