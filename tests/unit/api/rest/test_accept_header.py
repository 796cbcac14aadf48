"""The media type chosen for each `Accept` header."""

import pytest

from rollbook.api.rest.accept_header import preferred_type

HTML, JSON, LINES = "text/html", "application/json", "application/x-ndjson"
OFFERED = {
    HTML: (HTML,),
    JSON: (JSON,),
    LINES: (LINES,),
    "*/*": (JSON, LINES, HTML),
    "application/*": (JSON, LINES),
    "text/*": (HTML,),
}


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        # Absent, or empty.
        ("", JSON),
        (" ", JSON),
        (", ,", JSON),
        # One range.
        ("*/*", JSON),
        ("application/*", JSON),
        ("text/*", HTML),
        ("TEXT/HTML", HTML),
        ("text/html;charset=utf-8", HTML),
        # Weights decide, then the order.
        ("text/html;q=0.1, application/json", JSON),
        ("text/html, application/json", HTML),
        ("application/json, text/html", JSON),
        ("application/json;q=0.5, text/html;q=0.500", JSON),
        ("text/html; Q=0.2, application/x-ndjson ; q=0.3", LINES),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", HTML),
        ("*/*;q=0.1, text/html", HTML),
        ("image/png, */*;q=0.1", JSON),
        # The narrowest range decides.
        ("application/json;q=0, */*", LINES),
        ("application/*;q=0, */*", HTML),
        # The first of equal ranges counts.
        ("text/html;q=0.1, text/html, application/json;q=0.5", JSON),
        # Nothing acceptable.
        ("*/*;q=0", None),
        ("text/html;q=0", None),
        ("image/png", None),
        # Malformed: an invalid range matches nothing, an invalid weight is 0.
        ("text", None),
        ("*", None),
        ("text/html/x", None),
        ("text/html;q=much", None),
        ("text/html;q=1.1", None),
        ("text/html;q=-1", None),
        ("text/html;q=.5, application/json;q=0.1", JSON),
        ("text/html;q=, */*;q=0.1", JSON),
        (";;;,text/html", HTML),
    ],
)
def test_media_type_is_chosen_by_weight(accept: str, answered: str | None) -> None:
    assert preferred_type(accept, OFFERED, JSON) == answered
