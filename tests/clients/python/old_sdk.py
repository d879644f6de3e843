"""An older official Python SDK, as a user would use it: lists the tools, makes a project, reads it
back, and makes a call that cannot work. What it saw goes to stdout as one JSON object.
"""

import asyncio
import json
import os
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client


async def main() -> None:
    headers = {"Authorization": f"Bearer {os.environ['OUBLIETTE_TOKEN']}"}
    async with streamablehttp_client(os.environ["OUBLIETTE_URL"], headers=headers) as streams:
        async with ClientSession(streams[0], streams[1]) as client:
            initialized = await client.initialize()
            tools = await client.list_tools()
            made = await client.call_tool("project", {"action": "create", "name": "client"})
            # The oldest versions do not know structured results.
            project_id = json.loads(made.content[0].text)["project_id"]
            read = await client.call_tool("project", {"action": "get", "project_id": project_id})
            refused = await client.call_tool("project", {"action": "get", "projct_id": project_id})
            seen = {
                "protocol": str(initialized.protocolVersion),
                "tools": [wire(tool) for tool in tools.tools],
                "made": wire(made),
                "read": wire(read),
                "refused": wire(refused),
            }
    json.dump(seen, sys.stdout)


def wire(value) -> dict:
    """A value of the SDK as it was on the wire."""
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


asyncio.run(main())
