// An S3-compatible object store for s3_test.py: s3rver, which checks V4 signatures, with one bucket.
//   node s3_server.js FOLDER       prints {"port": N} once it listens on 127.0.0.1
'use strict';

// s3rver's router wants it; Debian 12's Node.js 18 does not have it.
Array.prototype.toReversed ??= function toReversed() {
  return this.slice().reverse();
};

const S3rver = require('@20minutes/s3rver');

const server = new S3rver({
  address: '127.0.0.1',
  port: 0,
  silent: true,
  directory: process.argv[2],
  serviceEndpoint: 'localhost',  // BUCKET.localhost is the bucket in virtual-host style
  configureBuckets: [{ name: 'models' }],
});
server.run().then(
  ({ port }) => console.log(JSON.stringify({ port })),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
