/** A completion that is not made, and the code of HTTP that says why. */
export class Refused extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}
