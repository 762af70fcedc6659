#include "mp_controller/rows/row_ledger.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

#include "common/bytes.h"
#include "common/hash.h"
#include "common/parse_number.h"

namespace ems::controller {
namespace {

constexpr uint64_t kSlotStep = 4096;

// {number, its checksum}
using NoteRecord = std::array<uint64_t, 2>;

uint64_t NoteSum(uint64_t number) {
  return Hash64(std::as_bytes(std::span(&number, 1)), 0x6e6f74650a);
}

uint64_t RowSum(std::string_view key, std::string_view value) {
  return Hash64(AsBytes(value), Hash64(AsBytes(key)));
}

}  // namespace

void RowLedger::Add(std::string_view key, std::string_view value) { sum += RowSum(key, value); }
void RowLedger::Take(std::string_view key, std::string_view value) { sum -= RowSum(key, value); }

std::string RowLedger::ToText() const { return fmt::format("{} {}", changes, sum); }

std::optional<RowLedger> RowLedger::FromText(std::string_view text) {
  const size_t blank = text.find(' ');
  if (blank == std::string_view::npos) return std::nullopt;
  const auto changes = ParseNumber<uint64_t>(text.substr(0, blank));
  const auto sum = ParseNumber<uint64_t>(text.substr(blank + 1));
  if (!changes || !sum) return std::nullopt;
  return RowLedger{*changes, *sum};
}

Result<ChangeNote> ChangeNote::Open(const std::string& path) {
  ChangeNote note;
  note.file_ = fabric::Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!note.file_.valid())
    return Error(StatusCode::kUnavailable, "cannot open {}: {}", path, fabric::ErrnoText(errno));
  for (const uint64_t at : {uint64_t{0}, kSlotStep}) {
    NoteRecord record{};
    const ssize_t n = ::pread(note.file_.get(), &record, sizeof(record), static_cast<off_t>(at));
    if (n < 0)
      return Error(StatusCode::kUnavailable, "cannot read {}: {}", path, fabric::ErrnoText(errno));
    if (n == sizeof(record) && record[1] == NoteSum(record[0]))
      note.last_ = std::max(note.last_, record[0]);
  }
  return note;
}

void ChangeNote::Set(uint64_t change) {
  const NoteRecord record{change, NoteSum(change)};
  const auto at = static_cast<off_t>(change % 2 * kSlotStep);
  if (::pwrite(file_.get(), &record, sizeof(record), at) == sizeof(record)) last_ = change;
}

}  // namespace ems::controller
