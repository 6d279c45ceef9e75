// Makes Node.js resolve names below localhost, as browsers do, if the system's resolver does not.
const dns = require("node:dns")
const system = dns.lookup
dns.lookup = (name, ...rest) => system(name.endsWith(".localhost") ? "127.0.0.1" : name, ...rest)
