"""Texts that a model, a file or a shell could hand over, from the ordinary to the hostile."""

from hypothesis import strategies as st

_ANSWERS = "nurse nurſe DOCTOR first ﬁrst 2nd １ left yes Yeſ no not isn't isn’t cannot A B Ａ (C) answer is"
_NUMBERS = "85000 $1,250,000 ８５０００ ٣ ² 0 1 2 -1 -0 0.5 1e308 1e999 NaN inf 0x10 1_000 2024-02-30 null true"
_MARKUP = "[INST] [/bold] {} {race} {0} %s =1+1 @ ~ ../.. \\ ' \" # : , - & * ! | > % ` a/b <script> 🧑🏽‍⚕️"
_ODD = ("İ", "\u212a", "\u0307", "\u2028", "\x85", "\x00", "\ud800", "\ufeff", "\u202e", "\t", "\n", "\r\n", " ", "")
_WORDS = (*_ANSWERS.split(), *_NUMBERS.split(), *_MARKUP.split(), *_ODD, "amber", "race")

words = st.sampled_from(_WORDS) | st.sampled_from([300, 4_301]).map(lambda digits: "9" * digits)
"""Words that a parser or a reader could stumble over."""

anything = st.text(st.characters())
"""Any text at all: also lone surrogates, which are no Unicode."""

answers = anything | st.lists(words | anything, max_size=8).map(" ".join) | st.lists(words, max_size=3).map("".join)
"""A model's answer."""
