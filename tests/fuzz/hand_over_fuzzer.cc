// Any bytes as a hand-over record, as they are and with the checksum and layout that make them be
// looked at: an error, or rows that keep the invariants of hand_over_record.h.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "common/check.h"
#include "mp_server/memory/size_classes.h"
#include "mp_server/restart/hand_over_record.h"
#include "proto/shm_layout.h"

namespace ems::server {
namespace {

void CheckRecord(ConstBytes bytes) {
  const auto record = HandOver::Decode(bytes);
  if (!record.ok()) return;
  EMS_CHECK(record->size_bytes() <= bytes.size());
  for (const RunRow& run : record->runs) {
    const uint64_t pages = record->segments.at(run.segment).bytes / kPageBytes;
    EMS_CHECK(run.pages > 0 && uint64_t{run.first_page} + run.pages <= pages);
  }
  for (const ObjectRow& object : record->objects) {
    const RunRow& run = record->runs.at(object.run);
    const uint64_t at = uint64_t{object.offset_units} * shm::kOffsetUnit;
    EMS_CHECK(at >= run.first_page * kPageBytes);
    EMS_CHECK(at + kObjectHeaderBytes <= (uint64_t{run.first_page} + run.pages) * kPageBytes);
  }
  // It is written as it was read.
  HandOver again = *record;
  std::vector<std::byte> written(again.size_bytes());
  again.Encode(written);
  EMS_CHECK(std::memcmp(written.data(), bytes.data(), written.size()) == 0);
}

// The rows of `bytes`, in a record that a checksum does not keep from being looked at.
void CheckRows(ConstBytes bytes) {
  HandOver record;
  if (bytes.size() < 4) return;
  record.segments.resize(std::to_integer<size_t>(bytes[0]) % 4);
  record.namespaces.resize(std::to_integer<size_t>(bytes[1]) % 4);
  record.runs.resize(std::to_integer<size_t>(bytes[2]) % 8);
  record.objects.resize(std::to_integer<size_t>(bytes[3]) % 8);
  bytes = bytes.subspan(4);
  const auto fill = [&bytes](auto* rows) {
    const auto room = std::as_writable_bytes(std::span(*rows));
    const size_t count = std::min(room.size(), bytes.size());
    if (count > 0) std::memcpy(room.data(), bytes.data(), count);
    bytes = bytes.subspan(count);
  };
  fill(&record.segments);
  fill(&record.namespaces);
  fill(&record.runs);
  fill(&record.objects);
  record.head.layout = LayoutFingerprint();
  std::vector<std::byte> written(record.size_bytes());
  record.Encode(written);
  CheckRecord(written);
}

}  // namespace
}  // namespace ems::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ems::ConstBytes bytes = std::as_bytes(std::span(data, size));
  ems::server::CheckRecord(bytes);
  ems::server::CheckRows(bytes);
  return 0;
}
