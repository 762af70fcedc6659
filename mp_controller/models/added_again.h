#pragma once
// What becomes of a version that is there when it is added again: it stays as it is, but for how it
// is first read.
#include "common/status.h"
#include "model_files/format/manifest.h"

namespace ems::controller {

// True: from now on it is first read as `asked` says. That may be changed as long as it is
// `untouched`, so that nobody can have read anything, by who asks for the same in all else (what
// protects one source need not protect the other, and who is refused for its rate has changed
// nothing); and it is lowered only if it `may_lower`, asked for by name: a default takes away no
// protection. Errors: kAlreadyExists  other files, sums or blocks, or all of it is to be read twice
// and some may have been read once
Result<bool> TakesFirstRead(const model::Manifest& there, bool untouched,
                            const model::Manifest& asked, bool may_lower);

}  // namespace ems::controller
