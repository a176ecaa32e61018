from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.api.quantity import LIMIT, MILLI, UNITS, QuantityError, format_quantity, parse, resource_value

POWERS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
FACTORS = {suffix: Fraction(10) ** power for suffix, power in POWERS.items()} | {
    f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)
}


@pytest.mark.parametrize(
    ("text", "units", "milli"),
    [
        ("0", 0, 0),
        ("-0", 0, 0),
        ("2", 2, 2000),
        ("+2", 2, 2000),
        ("-2", -2, -2000),
        ("1.", 1, 1000),
        (".5", 1, 500),
        ("1.5", 2, 1500),
        ("-1.5", -2, -1500),
        ("007.50", 8, 7500),
        ("500m", 1, 500),
        ("1500m", 2, 1500),
        ("1n", 1, 1),
        ("-1n", -1, -1),
        ("0.0001m", 1, 1),
        ("1u", 1, 1),
        ("1k", 1000, 10**6),
        ("1E", 10**18, 10**21),
        ("1e3", 1000, 10**6),
        ("1E3", 1000, 10**6),
        ("1e+3", 1000, 10**6),
        ("1500e-3", 2, 1500),
        ("1e-9", 1, 1),
        ("1e0", 1, 1000),
        ("1Ki", 1024, 1024_000),
        ("1.5Gi", 3 * 2**29, 3 * 2**29 * 1000),
        ("0.1Ki", 103, 102_400),
        ("1Ei", 2**60, 2**60 * 1000),
    ],
)
def test_texts_are_read_exactly_and_rounded_away_from_zero(text: str, units: int, milli: int) -> None:
    assert parse(text) == max(-LIMIT, min(LIMIT, units))
    assert parse(text, MILLI) == max(-LIMIT, min(LIMIT, milli))


@pytest.mark.parametrize("text", ["8Ei", "9223372036854775808", "1e19", "1e1000000", "1E" + "9" * 100, "9" * 5000])
def test_more_than_the_limit_is_held_at_the_limit(text: str) -> None:
    assert parse(text) == LIMIT
    assert parse("-" + text) == -LIMIT


def test_the_limit_itself_is_read_exactly() -> None:
    assert parse("9223372036854775807") == LIMIT
    assert parse("9223372036854775806") == LIMIT - 1
    assert parse("9223372036854775.807k") == LIMIT
    assert parse(LIMIT, MILLI) == LIMIT
    assert parse(-3, MILLI) == -3000


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "+", "-", "m", "Ki", "1 ", " 1", "1\n", "1e", "1e+", "1e1.5", "1K", "1ki", "1mi"),
        *("1.2.3", "--1", "0x10", "1_000", "٣", "½", "NaN", "inf", "1Zi", "1,5", "1e3k"),
    ],
)
def test_what_is_not_a_quantity_is_named(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse(text)
    assert caught.value.text == text
    assert repr(text) in str(caught.value)
    assert "500m" in str(caught.value)


def test_a_long_wrong_text_is_cut_in_the_message() -> None:
    with pytest.raises(QuantityError) as caught:
        parse("9" * 100_000 + "x")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("1e1000000000000000000", LIMIT),
        ("1e-1000000000000000000", 1),
        ("1." + "0" * 1_000_000 + "1", 1001),
        ("0." + "0" * 1_000_000 + "1Ei", 1),
        ("9" * 1_000_000 + "e-1000000", 1000),
        ("1e" + "0" * 1_000_000 + "1", 10_000),
    ],
    ids=["exponent", "negative-exponent", "fraction", "tiny", "cancelling", "padded-exponent"],
)
def test_monstrous_texts_are_read_without_computing_with_monstrous_numbers(text: str, milli: int) -> None:
    """With the numbers that these texts spell out this test would not end, or run out of memory."""
    assert parse(text, MILLI) == milli


def test_digits_beyond_any_resolution_still_round_up() -> None:
    assert parse("1." + "0" * 1000 + "1") == 2
    assert parse("1." + "0" * 1000) == 1
    assert parse("0." + "9" * 1000 + "Ki") == 1024
    assert parse("9" * 5000 + "e-4999") == 10


numbers = st.builds(
    lambda sign, whole, fraction, suffix: (sign, whole, fraction, suffix),
    st.sampled_from(["", "+", "-"]),
    st.text("0123456789", max_size=25),
    st.none() | st.text("0123456789", max_size=90),
    st.sampled_from(sorted(FACTORS)) | st.integers(-80, 80).map(lambda e: f"e{e}"),
).filter(lambda n: n[1] or n[2])


@given(numbers, st.sampled_from([UNITS, MILLI]))
def test_every_legal_text_agrees_with_exact_fractions(number: tuple[str, str, str | None, str], scale: int) -> None:
    sign, whole, fraction, suffix = number
    factor = Fraction(10) ** int(suffix[1:]) if suffix.startswith("e") else FACTORS[suffix]
    exact = (int(whole or "0") + Fraction(int(fraction or "0"), 10 ** len(fraction or ""))) * factor * scale
    expected = min(-(-exact.numerator // exact.denominator), LIMIT) * (-1 if sign == "-" else 1)
    text = sign + whole + ("" if fraction is None else "." + fraction) + suffix
    assert parse(text, scale) == expected


@given(st.text(max_size=20))
def test_any_text_gives_a_number_or_a_quantity_error(text: str) -> None:
    try:
        value = parse(text)
    except QuantityError:
        return
    assert abs(value) <= LIMIT


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("cpu", 0, "0"),
        ("cpu", 1500, "1500m"),
        ("cpu", 2000, "2"),
        ("cpu", -2000, "-2"),
        ("cpu", 2_000_000, "2k"),
        ("memory", 2**30, "1Gi"),
        ("memory", 1536 * 2**20, "1536Mi"),
        ("memory", 2**30 + 1, "1073741825"),
        ("memory", 1000, "1k"),
        ("memory", -(2**60), "-1Ei"),
        ("memory", 2**63, "8Ei"),
        ("hugepages-2Mi", 2**21, "2Mi"),
        ("ephemeral-storage", 10 * 2**30, "10Gi"),
        ("nvidia.com/gpu", 8, "8"),
        ("nvidia.com/gpu", 1024, "1024"),
        ("nvidia.com/gpu", 4000, "4k"),
    ],
)
def test_values_are_printed_as_kubernetes_prints_them(name: str, value: int, text: str) -> None:
    assert format_quantity(name, value) == text


@given(
    st.sampled_from(["cpu", "memory", "hugepages-1Gi", "nvidia.com/gpu"]),
    st.integers(-LIMIT, LIMIT) | st.integers(-(2**20), 2**20).map(lambda n: n * 1024**2 * 1000),
)
def test_printed_values_read_back_the_same(name: str, value: int) -> None:
    assert resource_value(name, format_quantity(name, value)) == value


def test_cpu_is_counted_in_millicores_and_the_rest_in_units() -> None:
    assert resource_value("cpu", "100m") == 100
    assert resource_value("cpu", 2) == 2000
    assert resource_value("memory", "100m") == 1
    assert resource_value("nvidia.com/gpu", "8") == 8
