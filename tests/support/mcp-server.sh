#!/bin/sh
# A small MCP server on stdio for the tests. `$1` is a directory in which it leaves marks.
marks=$1
extra=

answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; }
text() { printf '{"content":[{"type":"text","text":"%s"}]}' "$1"; }
tool() { printf '{"name":"%s","description":"a tool","inputSchema":{"type":"object"}}' "$1"; }

while read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/.*"id":\("[^"]*"\).*/\1/p; s/.*"id":\([0-9][0-9]*\).*/\1/p')
    token=$(printf '%s' "$line" | sed -n 's/.*"progressToken":\([0-9]*\).*/\1/p')
    case $line in
    *'"method":"initialize"'*)
        # The version that was asked for: some agents leave a server that answers with a newer one.
        version=$(printf '%s' "$line" | sed -n 's/.*"protocolVersion":"\([^"]*\)".*/\1/p')
        answer "$id" "{\"protocolVersion\":\"$version\",\"capabilities\":{\"tools\":{\"listChanged\":true}},\"serverInfo\":{\"name\":\"marks\",\"version\":\"1\"}}"
        ;;
    *'"method":"tools/list"'*)
        answer "$id" "{\"tools\":[$(tool app_echo),$(tool app_broken),$(tool app_slow),$(tool one_twin),$(tool two_twin),$(tool app_grow)$extra]}"
        ;;
    *'"method":"tools/call"'*'"name":"app_echo"'*)
        echoed=$(printf '%s' "$line" | sed -n 's/.*"text":"\([^"]*\)".*/\1/p')
        answer "$id" "$(text "echo: $echoed in $PWD with $GREETING")"
        ;;
    *'"method":"tools/call"'*'"name":"app_broken"'*)
        answer "$id" '{"content":[{"type":"text","text":"it is broken"}],"isError":true}'
        ;;
    *'"method":"tools/call"'*'"name":"app_slow"'*)
        printf '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1,"message":"half way"}}\n' "$token"
        : >"$marks/slow"
        ;;
    *'"method":"tools/call"'*'"name":"app_grow"'*)
        extra=",$(tool app_grown)"
        printf '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'
        answer "$id" "$(text grown)"
        ;;
    *'"method":"tools/call"'*'"name":"app_grown"'*)
        answer "$id" '{"content":[],"structuredContent":{"size":7}}'
        ;;
    *'"method":"tools/call"'*)
        answer "$id" "$(text 'a tool that is not listed')"
        ;;
    *'"method":"notifications/cancelled"'*)
        : >"$marks/cancelled"
        ;;
    *'"method":"notifications/'*) ;;
    *'"method":'*)
        printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}\n' "$id"
        ;;
    esac
done
: >"$marks/ended"
