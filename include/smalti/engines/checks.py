"""Is what a captioner answered a caption? `check_caption` names what is wrong with it.

Text that is visible in a picture is quoted verbatim and may be anything: another language, HTML, a refusal, one word thirty times.
So an answer is split first: a quotation counts as one word, and the checks read what is left, the model's own voice.

No pattern repeats over a repetition of the same characters, so time grows with the text's length and no faster.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from smalti.config import Checks
from smalti.reasons import CaptionFault

QUOTE = "\ue000"
"""Stands for a quotation in the voice: a private-use character, no letter and no space."""

_QUOTED = re.compile(
    # No body crosses another opening mark, so a mark that is never closed costs one step, and is found by `_ends_early`.
    r"(?=[“„«»‹「『《＂\"”`'‚‘])(?:“[^“”]*+”|“[^“”\"]*+\"|„[^„“”\"]*+[“”\"]|«[^«»]*+»|»[^«»]*+«|‹[^‹›]*+›|「[^「」]*+」"
    r"|『[^『』]*+』|《[^《》]*+》|＂[^＂]*+＂"
    r"|(?<![^\s(\[{<>“—–:=,/*_-])\"(?:[^\"“”]*+[\"”]|[^\"]*+\")|(?<![^\s(\[])”[^“”]*+”|(?<!`)`[^`\n]++`(?!`)"
    # Single marks are apostrophes, too: they open before a word, close after one, and '90s is a decade.
    r"|(?:''|``)(?:[^'`]|(?<=\w)'(?=\w))*+''|‚[^‚‘’]*+[‘’]"
    r"|(?<![\w'’])['‘](?!\d0s)(?=[^\s'’])(?:[^'’‘]|(?<=\w)['’](?=\w)){1,1500}+(?<!\s)['’](?!\w))"
)
_OPENING = re.compile(r"[\"“„«](?<![^\s(\[].)(?=\S)")
_SENTENCE = re.compile(rf"[.!?][\s\"')\]]*\s+|\n+|(?<={QUOTE})\s+(?=[A-Z])")


class _Parts(NamedTuple):
    text: str
    voice: str  # quotations are QUOTE, apostrophes straight
    quotes: Sequence[str]
    lines: Sequence[str]  # of the voice, as its sentences
    sentences: Sequence[str]


def check_caption(text: str, finish: str, rules: Checks) -> CaptionFault | None:
    """The fault of an answer, by the precedence of CaptionFault, or None for a caption.

    Args:
        text: the answer, special tokens included.
        finish: why the model stopped; "length" is its token limit.
        rules: what the profile asks for.
    """
    if not any(map(str.isalnum, text)):
        return CaptionFault.EMPTY
    parts = _split(text)
    if _leaks(parts):
        return CaptionFault.LEAKED_TOKENS
    if _REFUSAL.search(parts.voice) or any(map(_REFUSAL_BEGIN.match, parts.sentences)):
        return CaptionFault.REFUSAL
    if _is_marked_up(parts):
        return CaptionFault.MARKUP
    if _loops(parts):
        return CaptionFault.LOOPING
    if finish == "length" or _ends_early(parts.voice):
        return CaptionFault.CUT_OFF
    if rules.language == "en" and not _is_english(parts):
        return CaptionFault.WRONG_LANGUAGE
    return CaptionFault.TOO_SHORT if len(_WORD.findall(text)) < rules.min_words else None


def _split(text: str) -> _Parts:
    text = text.replace(QUOTE, " ").strip()
    quotes = _QUOTED.findall(text)
    voice = _QUOTED.sub(QUOTE, text) if quotes else text
    if not any(map(str.isalnum, voice)):  # what stands in quotation marks as a whole is the model's voice
        text = _QUOTED.sub(lambda quoted: f" {quoted[0][1:-1]} ", text).strip()
        quotes, voice = _QUOTED.findall(text), _QUOTED.sub(QUOTE, text)
    voice = voice.replace("’", "'")
    lines = [line.strip() for line in voice.split("\n")]
    return _Parts(text, voice, [quote[1:-1] for quote in quotes], lines, _SENTENCE.split(voice))


# what was not meant for the reader

_HTML = (
    "a|abbr|article|b|big|blockquote|body|br|button|center|code|dd|del|details|div|dl|dt|em|figcaption|figure|font|footer|form"
    "|h[1-6]|head|header|hr|html|i|iframe|input|label|li|link|main|mark|nav|ol|option|p|pre|script|section|select|small|span"
    "|strike|strong|style|sub|summary|sup|svg|table|tbody|td|textarea|th|thead|title|tr|u|ul"
)
_BROKEN = re.compile(  # in quotations, too: U+FFFD, control characters, tokenizers' blanks, UTF-8 read as Latin-1
    r"[\ufffd\x00-\x08]|▁\w|\w▁|Ġ(?:the|an?|of|and|in|is|on|with|to)\b|(?<!\w)[ĊĠ](?!\w)|[.,a-zĊ][ĊĠ]|â€|Ã[©¨¤¶¼]|ðŸ"
)
_TOKENS = re.compile(
    rf"(?=[<>|｜◁\[\]{{}}\\\"({QUOTE}])(?:<[|｜]|[|｜]>|<</?SYS>>|◁/?\w+▷|<0x[0-9A-F]{{2}}>"
    r"|</?(?i:s|[be]os|pad|unk|mask|sep|cls|think(?:ing)?|reasoning|answer|response|output|result|image|img|video|audio"
    rf"|caption|description|ocr|box|ref|quad|poly|point|tool|function|unused\d+|\w+_\w*)>|</(?!(?:{_HTML})>)[a-z][\w-]*>"
    r"|\[/?(?:INST|IMG\w*|SYS\w*|TOOL_\w+|AVAILABLE_TOOLS|gMASK|PAD|UNK|CLS|SEP|MASK|[BE]OS|image)\]"
    # JSON and what was in it: braces around keys, escapes, boxes.
    rf"|\A[\[{{]\s*[\[{{{QUOTE}\"\]]|\A\{{|\{{\s*{QUOTE}\s*:|\}}\]*\s*\Z|[\"{QUOTE}]\]\s*\Z|(?<=[.!?,{QUOTE}])\\[nrt]"
    r"|\\u[0-9a-f]{4}|\(\d{2,4},\d{2,4}\),\(\d{2,4},\d{2,4}\)|\[\[?(?:0?\.\d+|\d{2,4})(?:,\s?(?:0?\.\d+|\d{2,4})){3}\])"
)
_SCRAPS = re.compile(
    r"\b(?:im_start|im_end|endoftext|eot_id|vision_start|end_of_turn|(?:ASSISTANT|USER)\s?:|feel free to (?:ask|let|reach)"
    r"|(?<=[.!?])(?:assistant|user|system|model)\b(?=\s*(?:[A-Z]|\Z))"  # glued: a template's tokens were dropped
    r"|the user (?:wants?|asked|asks|is asking|needs) (?:me\b|us\b|for an? (?:\w+ ){0,3}(?:caption|description)\b))"
)
_TALK = re.compile(  # where a sentence or a line begins: roles, the prompt, thoughts about it, an offer to go on
    rf"[^\w{QUOTE}]*+(?:(?:assistant|user|system|human|model)(?:\W{{0,3}}\Z|\s?:)|(?:assistant|user|system)\s+[A-Z]"
    r"|(?i:assistant|user|human)\s?:|\w+\"\s*:|(?:Please )?[Dd]escribe (?:this|the) (?:image|picture|photo)\b"
    r"|Let me know (?:if|what|whether)\b|Feel free to\b|(?:Would you like|Do you want) me\b|(?:I )?[Hh]ope (?:this|that) "
    r"|Is there anything else\b|I (?:need|should|have) to\b|(?:First|Now), I\b|Let's (?:see|break)\b"
    r"|(?:Okay|Ok|Alright|Got it|Hmm|Wait)[,.] (?:so |now )?(?:let|I|the user|the image)\b"
    r"|If you (?:have any|need|want|would like|'d like) (?:\w+ ){0,3}(?:questions|help|details|changes|information)\b)"
)


def _leaks(parts: _Parts) -> bool:
    broken = not parts.text.isascii() and _BROKEN.search(parts.text)
    found = broken or _TOKENS.search(parts.voice) or _SCRAPS.search(parts.voice)
    return bool(found) or any(map(_TALK.match, parts.sentences))


# what is no description

_VERBS = (
    r"(?:(?:fully|accurately|reliably|definitively|clearly) )?(?:identify|describe|determine|provide|name|recogni[sz]e|assist"
    r"|help|confirm|give|generate|answer|verify|comply|process|analy[sz]e|access|fulfil|caption|create|view|say who|tell who)"
)
_REFUSAL = re.compile(
    # In the first person. Case counts: posters and titles in capitals are not the model.
    r"\b(?:I(?:'m| am| was)(?: \w+ly| so| very| just| only| also)? (?:sorry|unable|afraid|an AI\b|an? (?:large )?language model"
    r"|designed to|programmed to|prohibited|not (?:able|allowed|permitted|comfortable|capable|equipped|authori[sz]ed|going to))"
    r"|I(?: \w+ly| also| still| must| have to| do| would| will)? ?(?:cannot|can't|can not|could not|couldn't|won't|will not"
    r"|refuse|decline|apologi[sz]e|regret|would need|'d need|'d (?:rather|prefer) not|would (?:rather|prefer) not|not be|need more"
    r"|(?:do not|don't|didn't|did not) (?:have|provide|identify|recogni[sz]e|feel comfortable|receive|know who"
    r"|see (?:an?|any|the) (?:image|picture|photo|attach)))\b|something (?:that )?I can\b"
    rf"|[Ww]e (?:cannot|can't) {_VERBS}|(?:cannot|can't|not able to|unable to|won't) (?:assist|help) (?:with|you)\b"
    r"|[Aa]s an? (?:AI|artificial intelligence|(?:large |vision )?language model|(?:AI )?visual assistant)(?: \w+){0,3},? I\b"
    r"|[Mm]y (?:apologies|guidelines|programming|training data)\b"
    r"|(?:against|violat\w+|comply with|adhere to|due to) (?:(?:my|our|[A-Z]\w+'s) (?:\w+ )?|(?:the )?(?:content|safety|usage) )"
    r"(?:guidelines|polic(?:y|ies))\b"
    r"|(?:fulfil|complet|process|answer|comply with|respond to|help with|assist with)\w* (?:this|that|your|the) request\b"
    # Elsewhere in a sentence, fog can make it impossible to tell sea from sky.
    rf"|(?:but|however,|so) it(?:'s| is) (?:not possible|impossible) to {_VERBS})"
)
_REFUSAL_BEGIN = re.compile(
    r"\W*+(?:(?:(?:However|Unfortunately|But|As such|Therefore|So),? )?"
    rf"[Ii]t(?:'s| is| was| would be) (?:not possible|impossible|(?:not |in)appropriate|unethical) (?:for me )?to {_VERBS}"
    rf"|(?:Unable to|Not able to|Cannot|Can't|Can not|Could not|Failed to) {_VERBS}\b|(?:Sorry|Apologies)\b(?!,? we)|As an AI\b"
    r"|(?:Please|(?:Could|Can|Would) you)(?: please)? (?:provide|upload|share|attach|send|re-?send|re-?upload|try)\b"
    r"|(?:The|This|Your) (?:image|picture|photo) (?:cannot|can't|could not|failed to|did not) (?:be )?(?:describe|process|load"
    r"|analy[sz]|access|caption|open|come)|(?:\w+ (?:seems|appears) (?:that )?)?(?:[Tt]here (?:is|was|appears to be|seems to be) )?"
    r"[Nn]o (?:image|picture|photo)\w* (?:(?:was|is|were|has been) (?:\w+ )?)?(?:provided|attached|uploaded|included|shared|sent))"
)

# markup

_LABEL = (
    r"(?:(?:image|photo|picture|visible|detailed|short|long|dense|alt|scene|main|overall|key|art|text|colou?r|camera|final) )?"
    r"(?:captions?|descriptions?|type|title|summary|overview|style|subjects?|setting|background|foreground|composition"
    r"|lighting|colou?rs?|palette|mood|atmosphere|text|objects?|people|details?|medium|scene|notes?|answer|output|response"
    r"|prompt|tags?|keywords|perspective|angle|quality|elements?|features?|content|analysis|conclusion|image|photo|picture)"
)
_MARKUP = re.compile(
    r"(?=[#*_`~<&\\\]|•])(?:(?<!\S)#{2,6} \w|•[^•\n]*•|(?<![\w*])\*{1,3}\w[^*\n]*[^\s*]\*{1,3}(?![\w*])|(?<!\S)\*\*(?=[A-Z])"
    rf"|(?<![\w*])\*{{1,3}}{QUOTE}\*|(?<![\w_])_{{1,2}}+(?=[A-Z]|[^\W_]+ )[^_\n]+_{{1,2}}(?![\w_])|~~\w|```|\|\s*:?-{{3,}}|<!--"
    rf"|</?(?i:{_HTML})(?:[\s/][^<>\n]{{0,300}})?>|<(?i:img|video|audio|source)\s[^<>\n]{{0,300}}>"
    r"|&(?:amp|lt|gt|quot|nbsp|apos|#\d{2,5});|\]\(\S|\\[([]|\\(?:text\w*|frac|begin|mathbf)\{|(?:#[A-Za-z]\w+\s*){2,}\Z)"
)
_MARKUP_LINE = re.compile(
    r">*(?:#{1,6}[ \t]+\S|#{2,6}\w|[-*+•‣◦▪●■·–] +\S|[\u2190-\u2bff\U0001f300-\U0001faff]\ufe0f? +\S|\[[ x]\] |>[ \t]"
    r"|\|.*\|\Z|(?:-{3,}|\*{3,}|_{3,}|={3,})\Z|\(?[A-Ha-h]\) )"
    rf"|[^\w{QUOTE}]*+(?i:{_LABEL}[^\w{QUOTE}]*:|(?:image |detailed )?(?:caption|description) [-–—] )"
)
_PREAMBLE = re.compile(
    r"\W*+(?:(?:Sure|Certainly|Of course|Absolutely|Okay|Great)\b[^\w\n]*)?(?i:here(?:'s| is| are)|below is"
    r"|the following is|this is (?:a|the|my) [^:.\n]{0,60}(?:caption|description))\b[^:.\n]{0,120}:|\W*+(?:Sure|Certainly|Of course|Absolutely)[!,.]"
)
_NUMBERED_LINE = re.compile(r"\(?(\d{1,2})[.)][ \t]+\S")
_NUMBERED = re.compile(r"(?<![\w(.])([1-4])(?:\.(?= +[A-Z*\ue000])|\)(?= +\S))")
_LABELLED_LINE = re.compile(r"(?!The |An? |Its? |This )[A-Z][\w-]*(?: [\w&-]+){0,2}:(?=\s)")
_LABELLED = re.compile(rf"(?i){_LABEL}:(?=\s)")


def _is_marked_up(parts: _Parts) -> bool:
    """One sign of some kinds, two of others: "12. " at the start of a line may be the end of a sentence."""
    numbers = [int(found[1]) for found in map(_NUMBERED_LINE.match, parts.lines) if found]
    return bool(
        _MARKUP.search(parts.voice)
        or any(map(_MARKUP_LINE.match, parts.lines))
        or _PREAMBLE.match(parts.voice)
        or len(numbers) > 1
        or 1 in numbers
        or "123" in "".join(_NUMBERED.findall(parts.voice))
        or sum(map(bool, map(_LABELLED_LINE.match, parts.lines))) > 1
        or sum(map(bool, map(_LABELLED.match, parts.sentences))) > 1
    )


# loops

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+(?:['’-][^\W_]+)*")
_TOKEN = re.compile(rf"{QUOTE}|[^\W_]+(?:['-][^\W_]+)*")
_STUTTER = re.compile(r"(\S{1,8}?)\1{19,}")
_COUNT = re.compile(r"(?:[6-9]|\d\d+)(?:st|nd|rd|th)?|(?:six|seven|eigh|nin|ten|eleven|twelf|(?:thir|four|fif)teen)th")
_SMALL = frozenset(("a", "an", "the", "another", "and", "more"))
GRAM, WINDOW, QUOTED_WINDOW, RESAID = 5, 40, 90, 24
"""Words: a step of a loop; stale steps that are a loop, in the voice and in a quotation; what sentences may say again."""


def _loops(parts: _Parts) -> bool:
    quotes = iter(parts.quotes)
    tokens = [f'"{next(quotes, "")}' if token == QUOTE else token for token in _TOKEN.findall(parts.voice.lower())]
    return (
        _repeats(tokens)
        or _is_stale([_uncounted(token) for token in tokens], WINDOW)
        or any(
            (times - 1) * len(said.split()) >= RESAID
            for said, times in Counter(parts.sentences).items()
            if times > 1 and QUOTE not in said
        )
        or any(_is_stale(_TOKEN.findall(quote), QUOTED_WINDOW) for quote in parts.quotes if len(quote) > QUOTED_WINDOW)
        or _stutters(parts.voice.split())
    )


def _uncounted(token: str) -> str:
    return "#" if (token[0].isdecimal() or token[-2:] == "th") and _COUNT.fullmatch(token) else token


def _stutters(words: Sequence[str]) -> bool:
    """One sign, or a few, for ever, with or without blanks between."""
    signs = "".join(word for word in words if len(word) < 3 and not word.isalnum())
    return any(len(run) >= 20 and _STUTTER.search(run) for run in (signs, *words))


def _repeats(tokens: Sequence[str]) -> bool:
    """The same words back to back: the longer the phrase, the fewer times are too many."""
    grams = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
    if len(grams) - len(set(grams)) < 3:  # most captions: a loop needs more
        return False
    last: dict[tuple[str, ...], int] = {}
    period, run = 0, 0
    for at, gram in enumerate(grams):
        distance = at - last.get(gram, at)
        last[gram] = at
        period, run = distance, run + 1 if distance == period else 1
        if period and period + run + 2 >= period * _too_often(period, gram):
            return True
    return False


def _too_often(period: int, words: tuple[str, ...]) -> int:
    """How many times in a row are too many, for a phrase of so many words."""
    if period < 3:  # stripes are black, white, black, white; a row may be of zeros, or of the same sign
        return 12 if not words[0].isalpha() else 4 if _SMALL.intersection(words) else 6
    return 2 if period >= 12 else 3 if period >= 6 else 4


def _is_stale(tokens: Sequence[str], window: int) -> bool:
    """Nothing but phrases that were there before, in whatever order."""
    grams = list(zip(*(tokens[start:] for start in range(GRAM)), strict=False))
    if len(grams) - len(set(grams)) < window - 2:
        return False
    seen: set[tuple[str, ...]] = set()
    stale = 0.0
    for gram in grams:
        stale = stale + 1 if gram in seen else max(0.0, stale - window / 3)
        seen.add(gram)
        if stale >= window - 2:
            return True
    return False


# the end

_AFTER = re.compile(rf"[^\w.!?…。！？؟।)\],;:&/–—{QUOTE}-]")  # blanks, marks and emoji that may follow an end
_UNENDED = re.compile(r"(?:\.\.\.|…)\Z|\b(?:e\.g|i\.e|approx|vs|cf|incl|Mr|Mrs|Ms|Prof|an?|the|and)\.\Z")
_ADDRESS = re.compile(r"(?:https?://|www\.|\w\.(?:com|org|net|io|de|fr|co\.uk)\b)\S*\Z")


def _ends_early(voice: str) -> bool:
    """A caption ends with a full stop, a quotation, a bracket or an address."""
    opened = [match.start() for match in _OPENING.finditer(voice)]
    if opened and QUOTE not in (rest := voice[opened[-1] :]) and rest.count(" ") < 20:  # longer: its end was forgotten
        return True
    tail = voice[-200:]
    while tail and _AFTER.match(tail[-1]):
        tail = tail[:-1]
    if tail.endswith((".", "!", "?", "…", "。", "！", "？", "؟", "।")):
        return _UNENDED.search(tail[-12:]) is not None
    return not tail.endswith((QUOTE, ")", "]")) and _ADDRESS.search(tail) is None


# the language

_ENGLISH = (
    "the of and with is are to that this which his her its their while has have at by from for it be into behind above below"
    " near under was were not or but both each other some several she they where what there against across over around"
    " between through"
)
_FOREIGN = (  # German, French, Spanish, Portuguese, Italian, Dutch, Swedish and others
    "der das die und ist ein eine einen einem einer mit auf dem den im von zu sich sind nicht auch wird zeigt über unter zur aus"
    " bei durch während steht vor le la les des du un une est et dans avec sur qui que pour au aux ce cette il elle sont plus ses"
    " el los las en con y del al por se su sus para está unas sobre como mientras os um uma é em com e da das dos na nas seu sua"
    " ao pelo pela lo gli della delle dello degli dei di dal dalla che è una nel nella si sulla sullo sulle alla mentre de het een"
    " van met op te zijn dat die voor aan wordt er uit naar och på är som av ett med til det har i w z się jest oraz nad pod przez"
    " ve bir bu ile için yang dan dengan ini itu untuk dari pada sebuah adalah ja ovat joka ng sa ang mga ay ya wa kwa ni katika"
    " și în je az és egy"
)
_PARTICLES = "de la le les des du del el los las van da dos di della y et"  # in names, too: Place de la Concorde
_KINDS = ((_FOREIGN, "f"), (_PARTICLES, "p"), (_ENGLISH, "e"), ("a an in as", "a"))
_SMALL_WORDS = {word: kind for words, kind in _KINDS for word in words.split()}
_IN_NAMES = re.compile(r"(?<=N)p+(?=N)")
_SPAN = 20
_LATIN_WORD = re.compile(r"[A-Za-z\u00c0-\u024f\u1e00-\u1eff]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_OTHER_SCRIPT = re.compile(r"[^\W\d_\u0000-\u02ff\u1e00-\u1eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def _is_english(parts: _Parts) -> bool:
    """No stretch of another script, and none in which another language's small words stand for the English ones."""
    voice = parts.voice
    if not voice.isascii():
        strange = [len(_CJK.findall(s)) / 1.5 + len(_OTHER_SCRIPT.findall(s)) / 5 for s in _LATIN_WORD.split(voice)]
        if max(strange) >= 8 or sum(strange) > 0.2 * len(strange):  # letters as words; names in brackets are shorter
            return False
    sentences = [_kinds(sentence) for sentence in parts.sentences]
    kinds = "".join(sentences)
    if len(kinds) >= 25 and kinds.count("e") + kinds.count("a") < 0.04 * len(kinds):
        return voice.count(",") + voice.count(QUOTE) > len(kinds) / 6  # an enumeration needs no small words
    if kinds.count("f") + kinds.count("x") < 3:
        return True
    spans = [kinds[start : start + _SPAN] for start in range(0, max(1, len(kinds) - _SPAN // 2), _SPAN // 4)]
    return not any(map(_is_foreign, sentences + spans))


def _kinds(text: str) -> str:
    """A letter a word. e, f: a small word of English, of another language; x: with accents; l: lower case; N: as names are."""
    kinds = "".join(
        _SMALL_WORDS.get(word.lower())
        or ("N" if word[0].isupper() or len(word) == 1 else "l" if word.isascii() else "x")
        for word in _LATIN_WORD.findall(text)
    )
    return _IN_NAMES.sub("", kinds).replace("p", "f") if "p" in kinds else kinds


def _is_foreign(kinds: str) -> bool:
    """Names alone ("Rue de la Paix, Place de la Concorde") are not another language's prose."""
    english, foreign, accents = kinds.count("e"), kinds.count("f"), kinds.count("x")
    prose = kinds.count("l") + accents  # accents alone tell less: English has cafés, too
    least = max(3, 0.3 * len(kinds), 3 * english)
    return prose >= 0.2 * len(kinds) and max(foreign, (foreign + accents) * 0.7) >= least
