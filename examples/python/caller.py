"""A caller of Oubliette: gives an agent a tool, answers its calls and prints the agent's answer.

pip install mcp
OUBLIETTE_URL=http://127.0.0.1:7433/mcp OUBLIETTE_TOKEN=oub_… python caller.py "prompt"

The newest protocol version, which the SDK uses, has no unsolicited notifications: the caller waits for events.
"""

import asyncio
import os
import sys

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

PROMPT = '/tool myapp_send_notification {"message": "hello"}'
TOOL = {
    "name": "send_notification",
    "description": "Tell the user something.",
    "inputSchema": {"type": "object", "properties": {"message": {"type": "string"}}},
}


async def call(client: Client, tool: str, **arguments) -> dict:
    """Calls an operation of the server."""
    result = await client.call_tool(tool, arguments)
    if result.is_error:
        raise RuntimeError(result.content[0].text)
    return result.structured_content


async def respond(client: Client, request: dict) -> None:
    """Runs the tool and sends its result."""
    answer = {"session_id": request["session_id"], "request_id": request["request_id"]}
    message = request["arguments"].get("message")
    if message is None:
        answer["error"] = "`message` is missing"
    else:
        print(f"notification: {message}", flush=True)
        answer["result"] = {"status": "sent"}
    await call(client, "caller_tool_response", **answer)


async def main(prompt: str = PROMPT) -> None:
    headers = {"Authorization": f"Bearer {os.environ['OUBLIETTE_TOKEN']}"}
    http = httpx2.AsyncClient(headers=headers, timeout=60)
    transport = streamable_http_client(os.environ["OUBLIETTE_URL"], http_client=http)
    async with Client(transport) as client:
        projects = (await call(client, "project", action="list"))["projects"]
        project = next((candidate for candidate in projects if candidate["name"] == "python example"), None)
        project = project or await call(client, "project", action="create", name="python example")
        context = {"caller_id": "myapp", "caller_tools": [TOOL]}
        spawned = await call(
            client, "session", action="spawn", project_id=project["project_id"],
            prompt=prompt, new_session=True, context=context,
        )
        session, since = spawned["session_id"], spawned["last_event_index"]
        async with asyncio.TaskGroup() as answers:
            while True:
                page = await call(
                    client, "session", action="events", session_id=session,
                    since_index=since, wait_seconds=20,
                )
                since = page["last_index"]
                for event in page["events"]:
                    if event["type"] == "caller_tool_request":
                        answers.create_task(respond(client, event))
                    elif event["type"] == "completion":
                        print(event["text"])
                        return


asyncio.run(main(*sys.argv[1:]))
