"""Names that try to leave the place where they are shown: markup, formulas, controls, directions, lengths."""

import numpy as np
from drawn import drawn_labels

from calibrant import Predictions

ADDRESS = "http://127.0.0.1:{port}/{kind}"
MARKUP = {
    "refresh": '<meta http-equiv=refresh content="0;url={url}">',
    "refresh_bare": "<meta http-equiv=refresh content=0;url={url}>",
    "refresh_left": '"><meta http-equiv=refresh content=0;url={url}>',
    "refresh_quote": "'><meta http-equiv=refresh content=0;url={url}>",
    "refresh_title": "</title><meta http-equiv=refresh content=0;url={url}>",
    "refresh_style": "</style><meta http-equiv=refresh content=0;url={url}>",
    "refresh_script": "</script><meta http-equiv=refresh content=0;url={url}>",
    "refresh_svg": "</text></svg><meta http-equiv=refresh content=0;url={url}>",
    "refresh_comment": "--><meta http-equiv=refresh content=0;url={url}><!--",
    "refresh_data": "]]><meta http-equiv=refresh content=0;url={url}>",
    "base": '<base href="{url}/">',
    "script": "<script>location='{url}'</script>",
    "script_end": "</script><script>location='{url}'</script>",
    "script_source": '<script src="{url}"></script>',
    "script_json": "</script><script type=module>location='{url}'</script>",
    "image": '<img src="{url}">',
    "image_error": "<img src=x onerror=\"location='{url}'\">",
    "handler": "\" onmouseover=\"location='{url}'\" autofocus onfocus=\"location='{url}'",
    "svg": "<svg onload=\"location='{url}'\"><image href='{url}'/></svg>",
    "svg_use": "<svg><use href='{url}#a'/></svg>",
    "animate": "<svg><a><animate attributeName=href values='{url}'/></a></svg>",
    "style": "<style>@import url({url}); body {{ background: url({url}) }}</style>",
    "style_attribute": '" style="background: url({url})',
    "link": '<link rel=stylesheet href="{url}">',
    "prefetch": '<link rel=dns-prefetch href="{url}"><link rel=preload as=image href="{url}">',
    "frame": '<iframe src="{url}"></iframe>',
    "object": '<object data="{url}"></object><embed src="{url}">',
    "form": '<form action="{url}"><input autofocus onfocus=submit()></form>',
    "data": '<iframe src="data:text/html,<script>location=`{url}`</script>"></iframe>',
    "javascript": "<a href=\"javascript:location='{url}'\" autofocus>go</a>",
    "details": "<details open ontoggle=\"location='{url}'\">",
    "video": '<video src="{url}" autoplay onerror="location=\'{url}\'"></video>',
    "template": "{{{{7*7}}}} {{% include '{url}' %}} ${{location='{url}'}} `${{location='{url}'}}`",
    "noscript": "<noscript><meta http-equiv=refresh content=0;url={url}></noscript>",
    "entities": "&lt;meta http-equiv=refresh content=0;url={url}&gt;&#60;img src={url}&#62;",
    "escapes": r"\u003cmeta http-equiv=refresh content=0;url={url}\u003e\x3cimg src={url}\x3e",
    "markdown": "![x]({url}) [x](javascript:location='{url}') `code` **b** a|b",
}
PLAIN_NAMES = {
    "equals": '=HYPERLINK("{url}","x")',
    "at": "@SUM(1+1)*cmd|' /C calc'!A0",
    "minus": "-1+1",
    "tab": "\t=1+1",
    "latex": r"\input{{/etc/passwd}} 50 % of $x_1^2$ & {{a}} ~ # | \\[2em] $\frac{{$",
    "escape": "\x1b[31mred\x1b]0;title\x07\x9b31m\x00\r\n",
    "override": "\u202eevil\u202c\u2066\u200b\ufeff\u2028",
    "arabic": "\u0645\u0631\u062d\u0628\u0627 12",
    "hebrew": "\u05d0\u05d1\u05d2 (\u05d3)",
    "rich": "[/b] [link=file:///etc] [red",
    "quotes": "'\"` \u201c\u201d",
    "long": "<b>x</b>" * 625_000,
}


def names(port: int = 9) -> dict[str, str]:
    """Return every name by its kind; those with an address ask a server at `port` for their kind."""
    return {
        kind: text.format(url=ADDRESS.format(port=port, kind=kind)) if kind != "long" else text
        for kind, text in (MARKUP | PLAIN_NAMES).items()
    }


def named_predictions(seed: int, k: int, name: str) -> Predictions:
    """Draw predictions whose first class and first group have a name."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((60, k), np.float32)
    classes = [name, *(f"c{j}" for j in range(1, k))]
    return Predictions(z, drawn_labels(z / 2, rng), class_names=classes, groups=[name, "other"] * 30)
