// A file without a disk, for libraries that read and write state by path: a memfd, and /proc/self/fd as its name.
import fs from 'node:fs';
import util from 'node:util';

const read = util.promisify(fs.read);
const write = util.promisify(fs.write);
const close = util.promisify(fs.close);

const MFD_CLOEXEC = 1;
let create = null;

export class MemoryFile {
  #fd;

  /** Throws when the kernel gives none. */
  constructor(koffi) {
    create ??= koffi.load('libc.so.6').func('int memfd_create(const char *name, unsigned int flags)');
    this.#fd = create('ems-llama-state', MFD_CLOEXEC);
    if (this.#fd < 0) throw new Error('memfd_create failed');
  }

  /** Its name in this process, while it is open. */
  get path() {
    return `/proc/self/fd/${this.#fd}`;
  }

  get size() {
    return fs.fstatSync(this.#fd).size;
  }

  /** A copy of [offset, offset + size). Throws when the file ends before. */
  async read(offset, size) {
    const buffer = Buffer.allocUnsafeSlow(size);
    for (let done = 0; done < size;) {
      const {bytesRead} = await read(this.#fd, buffer, done, size - done, offset + done);
      if (bytesRead === 0) throw new Error(`the file ends at ${offset + done}, before ${offset + size}`);
      done += bytesRead;
    }
    return buffer;
  }

  async write(offset, buffer) {
    for (let done = 0; done < buffer.length;) {
      const {bytesWritten} = await write(this.#fd, buffer, done, buffer.length - done, offset + done);
      done += bytesWritten;
    }
  }

  /** Never fails: memory has nothing to lose. */
  async close() {
    const fd = this.#fd;
    this.#fd = -1;
    if (fd >= 0) await close(fd).catch(() => {});
  }
}
