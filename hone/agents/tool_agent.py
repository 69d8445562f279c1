"""The agent of conversations: the model speaks, tools or a user answer, until nobody has anything to say."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from hone.agents.calling import call
from hone.agents.conversation import Conversation
from hone.agents.formats import Said
from hone.agents.interactions import InteractionSession
from hone.agents.llm import LLM
from hone.agents.multi_turn import MultiTurn
from hone.agents.registry import register_agent
from hone.agents.reply import Reply
from hone.agents.row_arguments import interaction_arguments, tool_arguments
from hone.agents.sanity import decode, difference, warn, warn_unrendered
from hone.agents.tools import ToolSession
from hone.agents.trajectory import Trajectory
from hone.data.chat import Message
from hone.data.prompts import Sample
from hone.errors import UserError
from hone.user_code import quote


@register_agent("tool_agent")  # how verl's rows call it
@register_agent("tools")
class ToolAgent:
    """One trajectory; `run` reads top to bottom what a conversation is."""

    sample: Sample
    setup: MultiTurn
    messages: list[Message]
    conversation: Conversation

    async def run(self, sample: Sample, llm: LLM) -> Trajectory:
        if llm.multi_turn is None:
            raise UserError("the agent 'tools' needs multi_turn.enable=True, and tools or interactions")
        self.sample, self.setup, self.messages = sample, llm.multi_turn, list(sample.messages)
        most = llm.sampling.max_tokens
        self.conversation = Conversation(
            list(sample.prompt_ids), most, llm.max_model_len or len(sample.prompt_ids) + most
        )
        async with AsyncExitStack() as stack:
            tools = await stack.enter_async_context(self._tools())
            user = await stack.enter_async_context(self._user())
            stop_reason = await self._talk(llm, tools, user)
            self.conversation.reward(await tools.reward())
        if self.setup.checked:
            self._check_tokens()
        return self.conversation.trajectory(stop_reason)

    async def _talk(self, llm: LLM, tools: ToolSession, user: InteractionSession) -> str:
        """Why the conversation ended: stop, or length where a limit ended it."""
        while True:
            completion = await llm.generate(self.conversation.ids, self.conversation.room)
            said = self.setup.read(completion)
            self.conversation.sampled(completion)
            self.messages.append(assistant_message(said, len(self.messages)))
            noticed = await self._after_turn()
            if completion.stop_reason == "length":
                return "length"
            answers = [] if noticed.done else await self._answers(said, tools, user)
            if not answers:
                return "stop"
            if self.conversation.turns >= self.setup.max_turns or not self._go_on(answers, completion.token_ids[-1]):
                return "length"

    async def _answers(self, said: Said, tools: ToolSession, user: InteractionSession) -> list[Message]:
        """The messages that answer the turn, none where the conversation is done; their rewards go to the turn."""
        replies = await tools.run(said.calls) if said.calls else [await user.reply(self.messages)]
        self.conversation.reward(sum(reply.reward for reply in replies))
        if any(reply.done for reply in replies):
            return []
        if not said.calls:
            return [{"role": "user", "content": replies[0].content}]
        calls = self.messages[-1]["tool_calls"]
        return [
            {"role": "tool", "name": made["function"]["name"], "tool_call_id": made["id"], "content": reply.content}
            for made, reply in zip(calls, replies, strict=True)
        ]

    def _go_on(self, answers: list[Message], last_token: int) -> bool:
        """Writes the answers behind the turn; False if they leave no room for another."""
        self.messages += answers
        rendering, tokenizer = self.setup.rendering, self.setup.tokenizer
        ids = rendering.continuation(answers, last_token)
        if self.setup.as_at_inference:
            whole = self._at_inference()
            if decode(tokenizer, [*self.conversation.ids, *ids]) != whole:
                self._check_prompt(whole)
                return self.conversation.rewritten(tokenizer.encode(whole, add_special_tokens=False))
        return self.conversation.rendered(ids)

    def _at_inference(self) -> str:
        try:
            return self.setup.rendering.whole(self.messages, generation=True)
        except Exception as problem:  # it is the model's code, and what the model calls may be odd
            raise UserError(
                f"{self._section}.use_inference_chat_template=True: the template refuses a conversation that the model "
                f"had ({problem}); set it to False"
            ) from problem

    def _check_tokens(self) -> None:
        rendering, ids = self.setup.rendering, self.conversation.ids
        if ids[-1] in rendering.special:  # the last turn's end token, which may be another than the template's
            ids = ids[:-1]
        try:
            whole = rendering.whole(self.messages, generation=False)
        except Exception as problem:  # whatever a template makes of odd calls; some take one a turn only, for example
            warn_unrendered(problem)
        else:
            warn(difference(self.setup.tokenizer, ids, whole))

    def _check_prompt(self, whole: str) -> None:
        prompt = self.setup.rendering.whole(self.sample.messages, generation=False)
        given = decode(self.setup.tokenizer, self.conversation.prompt_ids)
        if not (whole.startswith(prompt) and given.startswith(prompt)):
            raise UserError(
                f"{self._section}.use_inference_chat_template=True: the template renders the prompt itself differently "
                "once the conversation goes on, or the prompt was cut (data.truncation); set it to False"
            )

    @property
    def _section(self) -> str:
        return self.setup.surroundings.section

    def _tools(self) -> ToolSession:
        tools = self.setup.surroundings.tools
        return ToolSession(tools, tool_arguments(self.sample, tools), self.setup.limits)

    def _user(self) -> InteractionSession:
        interactions = self.setup.surroundings.interactions
        name, arguments = interaction_arguments(self.sample, interactions, self._section)
        chosen = None if name is None else (name, interactions[name])
        return InteractionSession(chosen, arguments, self.setup.limits.seconds)

    async def _after_turn(self) -> Reply:
        """The user's function of every turn: it may reward the turn and end the conversation."""
        function, key = self.setup.surroundings.after_turn, f"{self._section}.completion_callback"
        if function is None:
            return Reply()
        try:
            said = await call(function, self.sample, list(self.messages), limit_s=self.setup.limits.seconds)
        except UserError:
            raise
        except (Exception, SystemExit) as problem:
            raise UserError(f"{key} failed: {quote(problem, None)}") from problem
        if said is None:
            return Reply()
        if not isinstance(said, Reply) or said.content:
            raise UserError(f"{key} returned {said!r:.80}: expected None or hone.agents.Reply(reward=..., done=...)")
        self.conversation.reward(said.reward)
        return said


def assistant_message(said: Said, number: int) -> Message:
    """As servers return it; the number makes the ids of its calls different from those of other turns."""
    message: Message = {"role": "assistant", "content": said.content}
    if said.thinking:
        message["thinking"] = said.thinking
    if said.calls:
        message["tool_calls"] = [
            _call(f"call{number:03d}{index:02d}", made.name, made.arguments) for index, made in enumerate(said.calls)
        ]
    return message


def _call(identity: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "id": identity, "function": {"name": name, "arguments": arguments}}
