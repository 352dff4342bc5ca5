'use strict';
// Serves the handler of the tests by node:http, and prints the port.

const http = require('node:http');
const { handle } = require('./worker.js');

const server = http.createServer(handle.listener(process.env.ENDPOINT_TOKEN));
server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`));
