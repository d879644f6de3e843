// The official Go SDK, as a user would use it: lists the tools, makes a project, reads it back, and
// makes a call that cannot work. What it saw goes to stdout as one JSON object. The same program is
// built with an old and with the newest version of the SDK.
package main

import (
	"context"
	"encoding/json"
	"log"
	"net/http"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// withKey adds the key to every request.
type withKey struct{}

func (withKey) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer "+os.Getenv("OUBLIETTE_TOKEN"))
	return http.DefaultTransport.RoundTrip(request)
}

func main() {
	log.SetFlags(0)
	ctx := context.Background()
	client := mcp.NewClient(&mcp.Implementation{Name: "go", Version: "0"}, nil)
	transport := &mcp.StreamableClientTransport{
		Endpoint:   os.Getenv("OUBLIETTE_URL"),
		HTTPClient: &http.Client{Transport: withKey{}},
	}
	session, err := client.Connect(ctx, transport, nil)
	check(err)
	tools, err := session.ListTools(ctx, nil)
	check(err)
	call := func(arguments map[string]any) *mcp.CallToolResult {
		params := &mcp.CallToolParams{Name: "project", Arguments: arguments}
		result, err := session.CallTool(ctx, params)
		check(err)
		return result
	}
	made := call(map[string]any{"action": "create", "name": "client"})
	id := made.StructuredContent.(map[string]any)["project_id"]
	seen := map[string]any{
		"protocol": session.InitializeResult().ProtocolVersion,
		"tools":    tools.Tools,
		"made":     made,
		"read":     call(map[string]any{"action": "get", "project_id": id}),
		"refused":  call(map[string]any{"action": "get", "projct_id": id}),
	}
	check(session.Close())
	check(json.NewEncoder(os.Stdout).Encode(seen))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
