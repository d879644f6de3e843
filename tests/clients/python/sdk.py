"""The official Python SDK, as a user would use it: lists the tools, makes a project, reads it
back, and makes a call that cannot work. What it saw goes to stdout as one JSON object.

The SDK itself checks every structured result against the schema that the tool was listed with,
and raises where it does not fit.
"""

import asyncio
import json
import os
import sys

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def main(mode: str) -> None:
    key = os.environ["OUBLIETTE_TOKEN"]
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"})
    transport = streamable_http_client(os.environ["OUBLIETTE_URL"], http_client=http)
    async with Client(transport, mode=mode) as client:
        tools = await client.list_tools()
        made = await client.call_tool("project", {"action": "create", "name": "client"})
        project_id = made.structured_content["project_id"]
        read = await client.call_tool("project", {"action": "get", "project_id": project_id})
        refused = await client.call_tool("project", {"action": "get", "projct_id": project_id})
        seen = {
            "protocol": client.protocol_version,
            "tools": [wire(tool) for tool in tools.tools],
            "made": wire(made),
            "read": wire(read),
            "refused": wire(refused),
        }
    json.dump(seen, sys.stdout)


def wire(value) -> dict:
    """A value of the SDK as it was on the wire."""
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


asyncio.run(main(*sys.argv[1:]))
