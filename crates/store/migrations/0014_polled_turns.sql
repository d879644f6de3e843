-- For a call whose caller asks for the state of the turn instead of waiting for it: what the call would have
-- returned about the delivery of its message, as JSON. Null for others.
alter table relay_calls add column delivery text;
