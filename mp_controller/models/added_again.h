#pragma once
// What becomes of a version that is there when it is added again: it stays as it is, but for how it
// is first read.
#include "common/status.h"
#include "model_files/format/manifest.h"

namespace ems::controller {

// A version is added that is there already. True: from now on it is first read as `asked` says,
// which is allowed while it is `untouched` (nobody can have read anything) and all else is equal.
// Protection is lowered only if it `may_lower`, asked for by name: a default takes none away.
// Errors: kAlreadyExists  other files, sums or blocks, or all of it is to be read twice and some
// may have been read once
Result<bool> TakesFirstRead(const model::Manifest& there, bool untouched,
                            const model::Manifest& asked, bool may_lower);

}  // namespace ems::controller
