// The official TypeScript client, version 2, set to negotiate: lists the tools, makes a project,
// reads it back, and makes a call that cannot work. What it saw goes to stdout as one JSON object.
//
// The client itself checks every structured result against the schema that the tool was listed
// with, and throws where it does not fit.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const { OUBLIETTE_URL: url, OUBLIETTE_TOKEN: key } = process.env;
const headers = { Authorization: `Bearer ${key}` };
const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
const versionNegotiation = { mode: "auto" };
const client = new Client({ name: "typescript", version: "0" }, { versionNegotiation });
await client.connect(transport);

const call = (action) => client.callTool({ name: "project", arguments: action });
const protocol = client.getNegotiatedProtocolVersion();
const { tools } = await client.listTools();
const made = await call({ action: "create", name: "client" });
const { project_id } = made.structuredContent;
const read = await call({ action: "get", project_id });
const refused = await call({ action: "get", projct_id: project_id });
console.log(JSON.stringify({ protocol, tools, made, read, refused }));
await client.close();
