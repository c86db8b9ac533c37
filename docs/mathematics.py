"""Mathematics of the site as MathML, which browsers draw without a script."""

from __future__ import annotations

import html
import itertools
import re
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert

MATHEMATICS = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
MATHML = "http://www.w3.org/1998/Math/MathML"
LIMITS = {"msub": "munder", "msup": "mover", "msubsup": "munderover"}
ElementTree.register_namespace("", MATHML)


def on_page_content(content: str, **_: Any) -> str:
    """Mathematics in the form that browsers draw by themselves."""
    return MATHEMATICS.sub(_drawn, content)


def _drawn(found: re.Match[str]) -> str:
    return mathml(html.unescape(found["latex"]).strip(), displayed=found["tag"] == "div")


def mathml(latex: str, *, displayed: bool) -> str:
    """MathML of a formula, spaced as TeX spaces it."""
    bars = itertools.cycle((r"\left|", r"\right|"))  # brackets that grow by themselves: \big is not heeded
    latex = re.sub(r"\\[bB]igg?\|", lambda _: next(bars), latex)
    latex = re.sub(r"\\[bB]igg?(?=\(|\[|\\\{)", r"\\left", latex)
    latex = re.sub(r"\\[bB]igg?(?=\)|\]|\\\})", r"\\right", latex)
    drawn = convert(latex, display="block" if displayed else "inline")
    drawn = re.sub(r"<mo[^>]*>(&#x0002F;|&#x0007C;)</mo>", _tight, drawn)
    drawn = drawn.replace("<mo>&#x0221E;</mo>", "<mi>&#x0221E;</mi>")
    drawn = re.sub(
        r"<msup>(<mi>\w</mi>)<mi>(&#x02032;)</mi></msup>", r'\1<mo lspace="0" rspace="0">\2</mo>', drawn
    )
    drawn = re.sub(r"(<mi>[a-z]{2,}</mi>)(?!<mo|</)", r'\1<mspace width="0.17em"/>', drawn)
    return _with_limits(drawn) if displayed else drawn


def _with_limits(drawn: str) -> str:
    """Limits of sums and the like above and below, also inside brackets."""
    root = ElementTree.fromstring(drawn)
    for element in root.iter():
        kind = element.tag.removeprefix(f"{{{MATHML}}}")
        if kind in LIMITS and (element[0].text or "") in ("∑", "∏", "max", "min", "sup", "inf"):
            element.tag = f"{{{MATHML}}}{LIMITS[kind]}"
    return ElementTree.tostring(root, encoding="unicode")


def _tight(found: re.Match[str]) -> str:
    return found[0] if "form=" in found[0] else found[0].replace("<mo", '<mo lspace="0" rspace="0"', 1)
