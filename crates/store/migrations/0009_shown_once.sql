-- Outcomes of `token_create` no longer contain the key.
update tool_calls
set outcome = json_set(outcome, '$.done.key',
    'shown once, in the first result; if that is lost, create another one')
where json_valid(outcome) and json_type(outcome, '$.done.key') = 'text';
