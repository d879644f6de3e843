// The MCP Inspector's command line: lists the tools, makes a project, reads it back, and makes a
// call that cannot work. What it saw goes to stdout as one JSON object.
//
// Structured results are checked here against the schema that the tool was listed with.

import { spawnSync } from "node:child_process";
import Ajv from "ajv/dist/2020.js";

const { OUBLIETTE_URL: url, OUBLIETTE_TOKEN: key } = process.env;
// The Inspector's exit code for a result that is an error, as opposed to a call that failed.
const TOOL_IS_ERROR = 5;

function inspect(expected, ...args) {
  const header = `Authorization: Bearer ${key}`;
  const always = ["--cli", url, "--header", header, "--format", "json", "--quiet"];
  const options = { encoding: "utf8", maxBuffer: 1 << 24 };
  const done = spawnSync("inspector", [...always, "--method", ...args], options);
  if (done.status !== expected) {
    throw new Error(`inspector ${args.join(" ")} ended with ${done.status}: ${done.stderr}`);
  }
  const { result, schemaFindings } = JSON.parse(done.stdout);
  if (schemaFindings) {
    throw new Error(`schemas that some clients refuse: ${JSON.stringify(schemaFindings)}`);
  }
  return result;
}

function call(expected, action) {
  const args = ["--tool-name", "project", "--tool-args-json", JSON.stringify(action)];
  return inspect(expected, "tools/call", ...args);
}

const { protocolVersion: protocol } = inspect(0, "initialize");
const { tools } = inspect(0, "tools/list", "--strict");
const made = call(0, { action: "create", name: "client" });
const { project_id } = made.structuredContent;
const read = call(0, { action: "get", project_id });
const refused = call(TOOL_IS_ERROR, { action: "get", projct_id: project_id });

const { outputSchema } = tools.find((tool) => tool.name === "project");
const fits = new Ajv({ strict: false, logger: false }).compile(outputSchema);
for (const { structuredContent } of [made, read]) {
  if (!fits(structuredContent)) {
    throw new Error(`the result does not fit its schema: ${JSON.stringify(fits.errors)}`);
  }
}
console.log(JSON.stringify({ protocol, tools, made, read, refused }));
