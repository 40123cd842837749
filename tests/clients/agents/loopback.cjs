// Loaded into a client of Node: refuses connections that leave this machine, and writes their hosts to $PUNA_CONNECTIONS.
const fs = require("node:fs");
const net = require("node:net");

const LOOPBACK = new Set([undefined, "localhost", "127.0.0.1", "::1"]);
const connect = net.Socket.prototype.connect;

net.Socket.prototype.connect = function (...args) {
  const [options] = Array.isArray(args[0]) ? args[0] : args;
  const host = typeof options === "object" ? options.host : typeof args[1] === "string" ? args[1] : undefined;
  if (LOOPBACK.has(host)) return connect.apply(this, args);
  fs.appendFileSync(process.env.PUNA_CONNECTIONS, `${host}\n`);
  process.nextTick(() => this.destroy(new Error(`${host} is not this machine`)));
  return this;
};
