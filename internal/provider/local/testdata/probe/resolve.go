package main

import (
	"context"
	"net"
)

func testContext() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// redirected connects to a resolver outside.
func redirected(ctx context.Context, network, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, "9.9.9.9:53")
}
