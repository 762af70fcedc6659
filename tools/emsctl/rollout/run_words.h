#pragma once
// Runs one program to its end, without a shell.
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace ems::emsctl {

// `words`: the program, found by PATH, and its arguments. Its standard output goes to this one's
// standard error. Errors: kNotFound  it cannot be started    kInternal  it ended with another code
// than 0, or by a signal    kDeadlineExceeded  it was ended after `patience`
Status RunWords(const std::vector<std::string>& words, Duration patience);

}  // namespace ems::emsctl
