"""Makes tests/fixtures/chat_templates.json: chat templates, conversations, and the prompts that transformers makes of them.

It imports only the other side (transformers), never flaxformer_lite. By hand:

    pip install transformers jinja2
    python tests/makers/make_chat_reference.py tests/fixtures/chat_templates.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

USER = [{"role": "user", "content": "<Hi> 'é' 日本"}]
TWO = [*USER, {"role": "assistant", "content": "Well, "}]
NAMED = [{"role": "user", "content": "a", "name": "Ada"}]
LOOP = "{% for m in messages %}"
ROLES = (
    LOOP
    + "[{{ m.role }}] {{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)
TRIMMED = LOOP + "[{{ m.role }}] {{ m.content | trim }}</s>\n{% endfor %}"
DROPPED = LOOP + "{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
CASES: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = [
    (ROLES, TWO, {}),
    (ROLES, TWO, {"add_generation_prompt": False}),
    (ROLES, TWO, {"continue_final_message": True, "add_generation_prompt": False}),
    (TRIMMED, TWO, {"continue_final_message": True, "add_generation_prompt": False}),
    (DROPPED, TWO, {"continue_final_message": True, "add_generation_prompt": False}),
    (LOOP + "{% generation %}{{ m.content }}{% endgeneration %}\n|{% endfor %}", TWO, {}),
    ("{% set x = 1 %}{%- generation -%}\n  {% set x = 2 %}{{ x }}\n{%- endgeneration -%}\n{{ x }}", USER, {}),
    (LOOP + "{% generation %}{% break %}{% endgeneration %}{% endfor %}", USER, {}),
    ("{% generation %}", USER, {}),
    *((f"{{{{ messages | tojson{a} }}}}", USER, {}) for a in ("", "()", "(true)", "(false, 2)", "(indent=4)")),
    *(
        (f"{{{{ {{'b': 1, 'a': [2, '<']}} | tojson({a}) }}}}", USER, {})
        for a in ("sort_keys=true", "separators=(',', ':')", "ensure_ascii=true, indent='-'", "cls=1")
    ),
    ("{{ messages is none | tojson }}", USER, {}),
    ("{{ documents is none }} {{ documents is defined }} {{ tools is none }} {{ tools is defined }}", USER, {}),
    ("{% for d in documents %}{{ d.title }}: {{ d.text }};{% endfor %}", USER, {"documents": [{"title": "t", "text": "x"}]}),
    ("{% if documents %}{{ documents | length }}{% else %}none{% endif %}", USER, {}),
    ("{{ bos_token }}{{ bos_token is defined }}{{ eos_token }}{{ add_generation_prompt }}", USER, {}),
    ("{{ continue_final_message is defined }} {{ builtins is defined }}", USER, {}),
    ("{{ strftime_now('year') }}", USER, {}),
    ("{{ raise_exception('no ' ~ messages[0].role) }}", USER, {}),
    (LOOP + "{% if loop.index > 1 %}{% break %}{% endif %}{% continue %}a{% endfor %}b", TWO, {}),
    ("{% set ns = namespace(n=0) %}" + LOOP + "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", TWO, {}),
    ("{% set ns = namespace(_n=0) %}{{ 1 }}", USER, {}),
    ("{% set ns = namespace(self=3) %}{{ ns.self }}", USER, {}),
    ("{{ dict(a=1, b=2) }} {{ dict.fromkeys(['a'], 3) }} {{ dict.__class__ }}", USER, {}),
    ("{{ messages[0].name }}!{{ messages[0]['name'] }}", NAMED, {}),
    ("\n  {% if true %}\n  a\n  {% endif %}\n", USER, {}),
    ("{{ ''.__class__.__mro__ }}|{{ messages.append(1) }}", USER, {}),
    ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(messages[0]['content']) }}", USER, {}),
    ("{{ messages[0].content.split('>')[0] }}{{ messages[-1].content[::-1] }}", TWO, {}),
    ("{{ messages | map(attribute='role') | join(',') }}", TWO, {}),
]  # fmt: skip


def prompt(source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> str | None:
    """Returns the library's prompt; None where it raises an error."""
    chosen: dict[str, Any] = {"add_generation_prompt": True, "eos_token": "</s>"} | options
    try:
        return str(render_jinja_template([messages], chat_template=source, **chosen)[0][0])
    except Exception:
        return None


def main() -> None:
    names = ("source", "messages", "options", "prompt")
    rows = [dict(zip(names, (*case, prompt(*case)), strict=True)) for case in CASES]
    Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
