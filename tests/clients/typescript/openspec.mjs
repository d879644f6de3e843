// Asks the modules of the `openspec` command about many directories in one process: what
// `openspec list --json` and `openspec instructions apply --change ID --json` print there.
// The first argument is a file with a list of `{directory, changes}`, the second the file for the
// answers: for each, `{list, apply: {ID: …}}`, where what the command refuses is `{error}`.
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const command = join(process.cwd(), 'node_modules/@fission-ai/openspec/dist');
const load = (file) => import(pathToFileURL(join(command, file)));
const { ListCommand } = await load('core/list.js');
const { resolveRootForCommand, toRootOutput } = await load('core/root-selection.js');
const { applyInstructionsCommand } = await load('commands/workflow/instructions.js');

// As the actions of the command do it.
async function list() {
  const root = await resolveRootForCommand({}, {
    json: true,
    failurePayload: { changes: [], root: null },
    allowImplicitRoot: existsSync(join(process.cwd(), 'openspec', 'project.md')),
  });
  if (root) {
    const options = { sort: 'recent', json: true, root: toRootOutput(root) };
    await new ListCommand().execute(root.path, 'changes', options);
  }
}

async function printed(action) {
  const lines = [];
  const log = console.log;
  console.log = (line) => lines.push(line);
  process.exitCode = 0;
  try {
    await action();
  } catch (error) {
    return { error: error.message };
  } finally {
    console.log = log;
  }
  const answer = JSON.parse(lines.join('\n'));
  const failed = process.exitCode !== 0;
  process.exitCode = 0;
  return failed ? { error: answer.status[0].message, code: answer.status[0].code } : answer;
}

console.warn = () => {};
console.error = () => {};
const answers = [];
for (const { directory, changes } of JSON.parse(readFileSync(process.argv[1], 'utf-8'))) {
  process.chdir(directory);
  const apply = {};
  const answer = { list: await printed(list), apply };
  for (const change of changes) {
    apply[change] = await printed(() => applyInstructionsCommand({ change, json: true }));
  }
  answers.push(answer);
}
writeFileSync(process.argv[2], JSON.stringify(answers));
