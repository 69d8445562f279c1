"""Messages and their rendering by a tokenizer's chat template: the one renderer that every data set uses."""

from typing import Any

from hone.errors import UserError

Message = dict[str, Any]
Conversation = tuple[list[Message], str]  # with the place to name in an error
Tools = list[dict[str, Any]] | None  # schemas of what the model may call


def as_messages(value: Any, where: str) -> list[Message]:
    """A prompt as a list of messages; plain text is one user turn. `where` names the row and column in errors."""
    if isinstance(value, str):
        _check_text(value, where)
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: expected a text or a non-empty list of {{role, content}}, found {value!r:.80}.")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise UserError(f"{where}: expected messages with a role and a content, found {message!r:.80}.")
        if message["content"] is not None or not message.get("tool_calls"):  # a call of tools may go without words
            _check_text(message["content"], where)
    # Parquet fills the fields that other rows have with nulls; templates would take them for present.
    return [{k: v for k, v in message.items() if v is not None or k == "content"} for message in value]


def as_prompt(value: Any, where: str) -> list[Message]:
    """Messages that the assistant can answer."""
    messages = as_messages(value, where)
    last = messages[-1]
    if last["role"] == "assistant":
        raise UserError(
            f"{where}: the prompt ends with a turn of the assistant, and the template would open another. Remove that "
            "message, or put what it is to answer behind it."
        )
    if not (last["content"] or "").strip():
        raise UserError(f"{where}: the last message of the prompt is empty. Write a text, or remove the row.")
    return messages


def _check_text(content: Any, where: str) -> None:
    if not isinstance(content, str):
        raise UserError(
            f"{where}: expected a text as the content of a message, found {content!r:.80}. Write lists of text parts "
            "as one text; other parts (images, videos) are not built."
        )
    try:
        content.encode()
    except UnicodeEncodeError as problem:
        raise UserError(
            f"{where}: the text has half a character (a lone surrogate, {content[problem.start]!r}) at position "
            f"{problem.start}. Correct the text: tokenizers take whole characters only."
        ) from problem


def require_chat_template(tokenizer: Any) -> None:
    if not tokenizer.chat_template:
        raise UserError(
            f"The tokenizer of {tokenizer.name_or_path or 'the model'} has no chat template, and prompts are rendered "
            "by it. Use an instruction-tuned model, or put a chat_template.jinja into the model's folder."
        )


def render(
    tokenizer: Any, messages: list[Message], *, add_generation_prompt: bool, where: str, tools: Tools = None
) -> list[int]:
    """The token ids of a conversation, ready for the assistant's next turn if `add_generation_prompt`. `tools` are the
    schemas of what the model may call."""
    from jinja2 import TemplateError

    try:
        return list(_token_ids(tokenizer, messages, add_generation_prompt, tools))
    except (TemplateError, TypeError) as problem:
        raise UserError(f"{where}: the chat template refuses these messages: {problem}.") from problem


def render_all(
    tokenizer: Any, conversations: list[Conversation], *, add_generation_prompt: bool, tools: Tools = None
) -> list[list[int]]:
    """`render` of each conversation: one call for all takes half the time."""
    from jinja2 import TemplateError

    if not conversations:
        return []
    try:
        return list(_token_ids(tokenizer, [messages for messages, _ in conversations], add_generation_prompt, tools))
    except (TemplateError, TypeError):  # one by one, the row at fault is named
        return [
            render(tokenizer, messages, add_generation_prompt=add_generation_prompt, where=where, tools=tools)
            for messages, where in conversations
        ]


def rendered_lengths(
    tokenizer: Any, conversations: list[Conversation], *, add_generation_prompt: bool, tools: Tools = None
) -> list[int]:
    rendered = render_all(tokenizer, conversations, add_generation_prompt=add_generation_prompt, tools=tools)
    return [len(ids) for ids in rendered]


def _token_ids(tokenizer: Any, messages: Any, add_generation_prompt: bool, tools: Tools) -> Any:
    return tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=True
    )["input_ids"]
