#pragma once
// Drops files from the kernel's page cache, so that later reads go to the disk.
#include <string>

namespace ems::bench {

// Writes back what files owe the disk, then drops the page cache: with `whole_machine`, where this
// process may, all of it, else of the files below `folder` alone (posix_fadvise; pages that another
// process has mapped stay). Returns how, for people: "all of the machine's", "that of its files".
// Cost: blocks for as long as writing back takes.
std::string DropPageCache(const std::string& folder, bool whole_machine);

}  // namespace ems::bench
