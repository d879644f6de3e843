// A caller of Oubliette: gives an agent a tool, answers its calls and prints the agent's answer.
//
// npm install @modelcontextprotocol/sdk
// OUBLIETTE_URL=http://127.0.0.1:7433/mcp OUBLIETTE_TOKEN=oub_… node caller.mts "prompt"
//
// The SDK keeps a stream open, on which the server sends every event of the caller's sessions.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { LoggingMessageNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

type Result = Record<string, any>;

const { OUBLIETTE_URL = "", OUBLIETTE_TOKEN } = process.env;
const prompt = process.argv[2] ?? '/tool myapp_send_notification {"message": "hello"}';
const headers = { Authorization: `Bearer ${OUBLIETTE_TOKEN}` };
const transport = new StreamableHTTPClientTransport(new URL(OUBLIETTE_URL), { requestInit: { headers } });
const client = new Client({ name: "example", version: "1.0.0" });

/** Calls an operation of the server. */
async function call(tool: string, action: Result): Promise<Result> {
  const result: Result = await client.callTool({ name: tool, arguments: action });
  if (result.isError) {
    throw new Error(result.content[0].text);
  }
  return result.structuredContent;
}

/** Runs the tool and sends its result. */
async function respond({ session_id, request_id, arguments: { message } }: Result): Promise<void> {
  if (message === undefined) {
    await call("caller_tool_response", { session_id, request_id, error: "`message` is missing" });
    return;
  }
  console.log(`notification: ${message}`);
  await call("caller_tool_response", { session_id, request_id, result: { status: "sent" } });
}

const answered = new Set<string>();
const completed = new Promise<string>((resolve) => {
  client.setNotificationHandler(LoggingMessageNotificationSchema, async ({ params }) => {
    const event = params.data as Result;
    if (params.logger !== "oubliette.session") {
      return;
    }
    if (event.type === "completion") {
      resolve(event.text);
    } else if (event.type === "caller_tool_request" && !answered.has(event.request_id)) {
      // The server may repeat events on a reopened stream.
      answered.add(event.request_id);
      await respond(event);
    }
  });
});

await client.connect(transport);
const { projects } = await call("project", { action: "list" });
const known = projects.find((one: Result) => one.name === "typescript example");
const { project_id } = known ?? (await call("project", { action: "create", name: "typescript example" }));
const tool = {
  name: "send_notification",
  description: "Tell the user something.",
  inputSchema: { type: "object", properties: { message: { type: "string" } } },
};
const context = { caller_id: "myapp", caller_tools: [tool] };
await call("session", { action: "spawn", project_id, prompt, new_session: true, context });
console.log(await completed);
await client.close();
