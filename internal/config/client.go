package config

// Client is the configuration of the command line of a sandbox.
type Client struct {
	URL   string `key:"api_url" env:"AIO_API_URL" default:"http://127.0.0.1:8080" doc:"URL of the sandbox: http://host:port or unix:/path."`
	Token string `key:"token" env:"AIO_TOKEN,AUTH_TOKEN" secret:"true" doc:"Bearer token to send."`
	Key   string `key:"api_key" env:"AIO_API_KEY,SANDBOX_API_KEY" secret:"true" doc:"API key to send."`

	ServerUsers []string `key:"server_users" env:"AIO_SERVER_USERS" doc:"Local users whose server is trusted, with root and you; * means all."`
}
