#include "mp_server/ssd/disk/synced_ends.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "common/check.h"
#include "common/hash.h"
#include "common/logging.h"
#include "common/parse_number.h"

namespace ems::ssd {
namespace {

constexpr uint32_t kMagic = 0x53534d45;  // "EMSS" as it lies on the disk
constexpr uint16_t kVersion = 1;
constexpr uint64_t kSlotStep = 4096;
constexpr std::string_view kLogSuffix = ".log";
constexpr std::string_view kManifestPrefix = "MANIFEST-";
constexpr size_t kReadBytes = 1 << 18;

Status Refused(std::string_view what, const std::string& path, int error) {
  return Error(StatusCode::kUnavailable, "{} {}: {}", what, path, fabric::ErrnoText(error));
}

std::optional<uint64_t> IdOf(std::string_view name) {
  std::optional<uint64_t> number;
  const bool manifest = name.starts_with(kManifestPrefix);
  if (manifest) {
    number = ParseNumber<uint64_t>(name.substr(kManifestPrefix.size()));
  } else if (name.ends_with(kLogSuffix)) {
    number = ParseNumber<uint64_t>(name.substr(0, name.size() - kLogSuffix.size()));
  }
  if (!number) return std::nullopt;
  return *number * 2 + (manifest ? 1 : 0);
}

bool IsManifest(uint64_t id) { return id % 2 == 1; }

// As RocksDB names it.
std::string NameOf(uint64_t id) {
  return IsManifest(id) ? fmt::format("{}{:06}", kManifestPrefix, id / 2)
                        : fmt::format("{:06}{}", id / 2, kLogSuffix);
}

}  // namespace

struct SyncedEnds::Slot {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t count = 0;
  uint64_t generation = 0;
  std::array<End, kFilesMax> ends{};
  uint64_t reserved = 0;
  uint64_t checksum = 0;  // of what is in front of it

  static constexpr size_t kSummed = 16 + kFilesMax * sizeof(End) + 8;
  uint64_t Sum() const { return Hash64(Raw(this, kSummed)); }
  bool sound() const {
    return magic == kMagic && version == kVersion && count <= kFilesMax && checksum == Sum();
  }
  static ConstBytes Raw(const Slot* slot, size_t bytes) {
    return {reinterpret_cast<const std::byte*>(slot), bytes};
  }
};

bool SyncedEnds::Covers(std::string_view file_name) { return IdOf(file_name).has_value(); }

std::string SyncedEnds::PathOf(std::string_view name) const {
  return fmt::format("{}/{}", folder_, name);
}

Status SyncedEnds::LoadAndCheck() {
  auto state = state_.Lock();
  *state = State();
  EMS_RETURN_IF_ERROR(Load(&*state));
  EMS_ASSIGN_OR_RETURN(const bool others, OthersWorkedHere(state->ends));
  if (others) {
    EMS_LOG(
        kWarn, "mp_server",
        "SSD tier: a version that keeps no {} has worked on the index in {}; damage of before is "
        "not looked for",
        kFileName, folder_);
    state->ends.clear();
    return OkStatus();
  }
  for (const End& end : state->ends) EMS_RETURN_IF_ERROR(Check(end));
  return OkStatus();
}

Status SyncedEnds::Load(State* state) const {
  static_assert(sizeof(Slot) == 512);
  const std::string path = PathOf(kFileName);
  state->fd = fabric::Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!state->fd.valid()) return errno == ENOENT ? OkStatus() : Refused("cannot open", path, errno);
  for (const uint64_t at : {uint64_t{0}, kSlotStep}) {
    Slot slot;
    const ssize_t n = ::pread(state->fd.get(), &slot, sizeof(slot), static_cast<off_t>(at));
    if (n < 0) return Refused("cannot read", path, errno);
    if (n != sizeof(slot) || !slot.sound()) continue;
    if (state->found && slot.generation <= state->generation) continue;
    state->found = true;
    state->generation = slot.generation;
    state->ends.assign(slot.ends.begin(), slot.ends.begin() + slot.count);
  }
  if (!state->found) state->fd = fabric::Fd();
  return OkStatus();
}

// Each opening of RocksDB makes a MANIFEST and removes the one before. When CURRENT names one that
// has no end here and the one that has an end is gone, a version that does not know of ends has
// opened it since.
Result<bool> SyncedEnds::OthersWorkedHere(const std::vector<End>& ends) const {
  const std::string path = PathOf("CURRENT");
  const fabric::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    if (errno == ENOENT) return false;
    return Refused("cannot open", path, errno);
  }
  std::array<char, 64> text{};
  const ssize_t n = ::read(fd.get(), text.data(), text.size());
  if (n < 0) return Refused("cannot read", path, errno);
  std::string_view name(text.data(), static_cast<size_t>(n));
  if (name.ends_with('\n')) name.remove_suffix(1);
  const std::optional<uint64_t> current = IdOf(name);
  if (!current || !IsManifest(*current)) return false;  // RocksDB says what is wrong with it
  if (::access(PathOf(NameOf(*current)).c_str(), F_OK) != 0) return false;
  bool gone = false;
  for (const End& end : ends) {
    if (end.file == *current) return false;
    gone = gone || (IsManifest(end.file) && end.file < *current &&
                    ::access(PathOf(NameOf(end.file)).c_str(), F_OK) != 0);
  }
  return gone;
}

Status SyncedEnds::Check(const End& end) const {
  const std::string path = PathOf(NameOf(end.file));
  const fabric::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() && errno == ENOENT)
    return Error(StatusCode::kDataLoss, "{} is gone, {} of it had been synced", path,
                 FormatBytes(end.bytes));
  if (!fd.valid()) return Refused("cannot open", path, errno);
  std::vector<std::byte> part(kReadBytes);
  Hash64Stream hash;
  for (uint64_t at = 0; at < end.bytes;) {
    const size_t want = std::min<uint64_t>(part.size(), end.bytes - at);
    const ssize_t n = ::pread(fd.get(), part.data(), want, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Refused("cannot read", path, errno);
    if (n == 0)
      return Error(StatusCode::kDataLoss, "{} has {} bytes, {} had been synced", path, at,
                   end.bytes);
    hash.Update(ConstBytes(part).first(static_cast<size_t>(n)));
    at += static_cast<uint64_t>(n);
  }
  if (hash.Digest() == end.checksum) return OkStatus();
  return Error(StatusCode::kDataLoss, "{}: the {} bytes that had been synced are other ones now",
               path, end.bytes);
}

bool SyncedEnds::found() {
  auto state = state_.Lock();
  return state->found;
}

Status SyncedEnds::Keep() {
  auto state = state_.Lock();
  const std::string path = PathOf(kFileName);
  if (!state->fd.valid())
    state->fd = fabric::Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!state->fd.valid()) return Refused("cannot make", path, errno);
  EMS_RETURN_IF_ERROR(WriteSlot(&*state));
  const fabric::Fd folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (::fdatasync(state->fd.get()) != 0 || !folder.valid() || ::fsync(folder.get()) != 0)
    return Refused("cannot sync", path, errno);
  return OkStatus();
}

Status SyncedEnds::WriteSlot(State* state) const {
  if (!state->fd.valid()) return OkStatus();  // in memory alone as yet
  Slot slot;
  slot.count = static_cast<uint16_t>(state->ends.size());
  slot.generation = ++state->generation;
  std::copy(state->ends.begin(), state->ends.end(), slot.ends.begin());
  slot.checksum = slot.Sum();
  const off_t at = static_cast<off_t>(slot.generation % 2 * kSlotStep);
  if (::pwrite(state->fd.get(), &slot, sizeof(slot), at) == sizeof(slot)) return OkStatus();
  return Refused("cannot write", PathOf(kFileName), errno);
}

Status SyncedEnds::Set(std::string_view file_name, uint64_t bytes, uint64_t checksum) {
  const std::optional<uint64_t> id = IdOf(file_name);
  EMS_CHECK(id.has_value(), "no end of {} is kept", file_name);
  auto state = state_.Lock();
  std::erase_if(state->ends, [&](const End& end) { return end.file == *id; });
  if (state->ends.size() == kFilesMax) state->ends.erase(state->ends.begin());
  state->ends.push_back({*id, bytes, checksum});
  return WriteSlot(&*state);
}

Status SyncedEnds::Forget(std::string_view file_name) {
  const std::optional<uint64_t> id = IdOf(file_name);
  auto state = state_.Lock();
  const size_t gone = std::erase_if(state->ends, [&](const End& end) { return end.file == id; });
  if (gone == 0) return OkStatus();
  EMS_RETURN_IF_ERROR(WriteSlot(&*state));
  if (!state->fd.valid() || ::fdatasync(state->fd.get()) == 0) return OkStatus();
  return Refused("cannot sync", PathOf(kFileName), errno);
}

}  // namespace ems::ssd
