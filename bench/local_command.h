#pragma once
// `ems-bench local`: what a client on its server's host gets, beside memcpy, redis and memcached in
// the same run.

namespace ems {
class Command;
}

namespace ems::bench {

// Adds the command.
void AddLocalCommand(Command* program);

}  // namespace ems::bench
