#include "bench/ssd/page_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "fabric/net/socket.h"

namespace ems::bench {
namespace {

bool DropAll() {
  const fabric::Fd file(::open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC));
  return file.get() >= 0 && ::write(file.get(), "1\n", 2) == 2;
}

void DropFile(const std::filesystem::path& path) {
  const fabric::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return;
  (void)::fdatasync(file.get());  // dirty pages stay
  (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace

std::string DropPageCache(const std::string& folder, bool whole_machine) {
  ::sync();
  if (whole_machine && DropAll()) return "all of the machine's";
  std::error_code ended;
  for (std::filesystem::recursive_directory_iterator at(folder, ended), end; !ended && at != end;
       at.increment(ended)) {
    std::error_code ignored;
    if (at->is_regular_file(ignored)) DropFile(at->path());
  }
  return "that of its files";
}

}  // namespace ems::bench
