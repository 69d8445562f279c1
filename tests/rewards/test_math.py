import random
import threading
import time

import pytest

from hone.rewards.equivalence import equivalent, normalise
from hone.rewards.math import compute_score, last_boxed

EQUAL = [
    (r"\sqrt{\frac{1}{n}}", r"\frac{1}{\sqrt{n}}"),
    (r"\frac12", "0.5"),
    (r"\dfrac{3}{4}", r"\frac34"),
    ("1,234", "1234"),
    (r"1{,}000", "1000"),
    (r"\$18", "18"),
    (r"18\text{ dollars}", "18"),
    (r"90^\circ", "90"),
    ("x=5", "5"),
    (r"\frac{\pi}{3}", r"\pi/3"),
    (r"5\sqrt{2}", r"\sqrt{50}"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"\{1,2\}", r"\{2,1\}"),
    (r"\pm 2", "2,-2"),
    ("3x+2y=7", "6x+4y=14"),
    ("y=2x+3", "y-2x=3"),
    (r"(1+i)^2", "2i"),
    (r"\text{(B)}", "B"),
    (r"\text{even}", "even"),
    (r"(3, \frac{\pi}{2})", r"\left(3,\frac{\pi}{2}\right)"),
    ("0.333333", r"\frac13"),
    ("11_2", "11_{2}"),
]
DIFFERENT = [
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
    (r"1-\frac{1}{e}", r"1+\frac{1}{e}"),
    ("1 - 1/e", "1 + 1/e"),
    ("y=2x+3", "y=2x+4"),
    ("y=2x+3", "y=3x+3"),
    ("3x+2y=7", "3x-2y=7"),
    ("11_2", "11_3"),
    (r"10^{50}", r"10^{50}+1"),
    (r"\sqrt{2}", r"\sqrt{2}+10^{-15}"),
    ("2", "-2"),
    ("i", "-i"),
    ("|x|", "x"),
    ("0.333", r"\frac13"),
    ("(1,2)", "(2,1)"),
    ("[0,1]", "(0,1)"),
    ("x<3", r"x\le 3"),
    ("n!", "(n+1)!"),
    ("2n+1", "2m+1"),
    ("C", "D"),
    ("", "5"),
    (r"\frac{", "5"),
]


@pytest.mark.parametrize(("answer", "truth"), EQUAL)
def test_equivalent_answers_are_equal_in_both_directions(answer, truth):
    assert equivalent(answer, truth)
    assert equivalent(truth, answer)


@pytest.mark.parametrize(("answer", "truth"), DIFFERENT)
def test_different_answers_are_different_in_both_directions(answer, truth):
    assert not equivalent(answer, truth)
    assert not equivalent(truth, answer)


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "10^{10000000}", "99999999!", "(9!)!!", "2^{100!}", "x" * 5000])
def test_answers_too_costly_to_evaluate_are_compared_as_text_only(answer):
    assert equivalent(answer, answer)
    assert not equivalent(answer, "5")


@pytest.mark.parametrize("answer", ["0<12345i", r"\pi\in10", r"12345\mod100π12345", "((((", r"\begin{pmatrix}1"])
@pytest.mark.parametrize("truth", ["1+2i", r"x\in[0,1]", "5"])
def test_nonsense_is_wrong_and_raises_nothing(answer, truth):
    assert not equivalent(answer, truth)


def test_answers_can_be_compared_outside_the_main_thread():
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(equivalent("[1,2]", r"\left[1, 2.0\right]")))
    thread.start()
    thread.join()
    assert verdicts == [True]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (r"\left( 3 , 4 \right)", "(3,4)"),
        (r"\tfrac{1}2", r"\frac{1}{2}"),
        (r"\frac1{20}", r"\frac{1}{20}"),
        (r"\$ 1,234,567.", "1234567"),
        (r"45^{\circ}", "45"),
        (".5", "0.5"),
        (r"10\%", "10%"),
        (r"x \in \leftarrow", r"x\in\leftarrow"),
    ],
)
def test_forms_without_meaning_are_normalised(text, normal):
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{5}.", "5"),
        (r"\boxed{1}, no: \boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{x}\right.}", r"\left\{x"),
        (r"\fbox{7}", "7"),
        (r"$\boxed 5$", "5"),
        (r"\boxed {3}", "3"),
        (r"\boxed{4} and an unfinished \boxed{5", "4"),
        (r"\boxed{}", ""),
        ("no box", None),
    ],
)
def test_the_last_complete_box_is_read_with_balanced_braces(text, content):
    assert last_boxed(text) == content


def last_boxed_by_hand(text):
    """From the last box to the first: each is read by itself, to the end of the text if need be."""
    for start in reversed(range(len(text))):
        for box in (r"\boxed", r"\fbox"):
            if text.startswith(box, start):
                rest = text[start + len(box) :]
                content = braced_by_hand(rest.lstrip()) if rest.lstrip().startswith("{") else bare_by_hand(rest)
                if content is not None:
                    return content
    return None


def braced_by_hand(text):
    depth = 0
    for i, character in enumerate(text):
        if i == 0 or text[i - 1] != "\\":
            depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[1:i].strip()
    return None


def bare_by_hand(text):
    words = text.split("$")[0].split() if text.startswith(" ") else []
    return words[0] if words else None


@pytest.mark.parametrize("seed", range(5))
def test_a_box_is_found_in_one_pass_as_by_reading_every_box_by_itself(seed):
    draw = random.Random(seed)
    parts = [r"\boxed", r"\boxed{", r"\boxed {", r"\boxed ", r"\fbox{", r"\fbox\n{", "{", "}", "}", r"\{", r"\}",
             "\\", "$", " ", "\n", "7", "x y"]  # fmt: skip
    for _ in range(3000):
        text = "".join(draw.choices(parts, k=draw.randint(1, 14)))
        assert last_boxed(text) == last_boxed_by_hand(text), text


@pytest.mark.parametrize(
    "part", [r"\boxed{x", r"\boxed{", r"\boxed", r"\boxed ", "{", "}", r"\fbox{x}", " ", r"\boxed  \n"]
)
@pytest.mark.parametrize("end", ["", "}" * 50_000])
def test_a_text_of_any_length_is_read_at_once(part, end):
    start = time.process_time()
    last_boxed(part * 50_000 + end)
    assert time.process_time() - start < 2


def test_a_score_needs_a_box_and_an_equal_answer():
    assert compute_score("math", r"thus \boxed{\frac{2}{4}}", r"\frac12") == 1.0
    assert compute_score("math", r"thus \boxed{3}", r"\frac12") == 0.0
    assert compute_score("math", r"thus \frac12", r"\frac12") == 0.0
    assert compute_score("math", r"\boxed{204}", r"The answer is \boxed{204}.") == 1.0
    assert compute_score("aime2024", r"\boxed{204}", 204) == 1.0
