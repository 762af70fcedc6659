#include "mp_server/kv_events/event_encoder.h"

#include <msgpack/pack.h>

#include <array>
#include <string_view>

namespace ems::kv_events {
namespace {

int Append(void* text, const char* bytes, size_t size) {
  static_cast<std::string*>(text)->append(bytes, size);
  return 0;
}

std::string_view MediumName(Medium medium) {
  return medium == Medium::kDram ? "EMS_DRAM" : "EMS_SSD";
}

std::array<char, 16> BytesOf(Hash128 hash) {
  std::array<char, 16> bytes;
  for (size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(hash.hi >> (56 - 8 * i));
    bytes[8 + i] = static_cast<char>(hash.lo >> (56 - 8 * i));
  }
  return bytes;
}

// Writes a batch; of an event, field by field, in either encoding.
class Writer {
 public:
  Writer(Encoding encoding, std::string* out) : maps_(encoding == Encoding::kMaps) {
    msgpack_packer_init(&packer_, out, &Append);
  }

  void Begin(std::string_view tag, size_t fields) {
    if (maps_) {
      msgpack_pack_map(&packer_, fields + 1);
      Text("type");
    } else {
      msgpack_pack_array(&packer_, fields + 1);
    }
    Text(tag);
  }
  void Name(std::string_view name) {
    if (maps_) Text(name);
  }
  void Text(std::string_view text) {
    msgpack_pack_str(&packer_, text.size());
    msgpack_pack_str_body(&packer_, text.data(), text.size());
  }
  void Nil() { msgpack_pack_nil(&packer_); }
  void Number(uint64_t number) { msgpack_pack_uint64(&packer_, number); }
  void Seconds(double seconds) { msgpack_pack_double(&packer_, seconds); }
  void Array(size_t size) { msgpack_pack_array(&packer_, size); }
  void Hashes(HashForm form, std::span<const BlockEvent> events) {
    Array(events.size());
    for (const BlockEvent& event : events) {
      if (form == HashForm::kNumber) {
        Number(event.hash.lo);
        continue;
      }
      const std::array<char, 16> bytes = BytesOf(event.hash);
      msgpack_pack_bin(&packer_, bytes.size());
      msgpack_pack_bin_body(&packer_, bytes.data(), bytes.size());
    }
  }

 private:
  const bool maps_;
  msgpack_packer packer_;
};

void WriteStored(const EventEncoder::Options& options, std::span<const BlockEvent> events,
                 Writer* writer) {
  writer->Begin("BlockStored", 7);
  writer->Name("block_hashes");
  writer->Hashes(options.hash_form, events);
  writer->Name("parent_block_hash");
  writer->Nil();
  writer->Name("token_ids");
  writer->Array(0);
  writer->Name("block_size");
  writer->Number(options.block_tokens);
  writer->Name("lora_id");
  writer->Nil();
  writer->Name("medium");
  writer->Text(MediumName(events.front().medium));
  writer->Name("lora_name");
  writer->Nil();
}

void WriteRemoved(const EventEncoder::Options& options, std::span<const BlockEvent> events,
                  Writer* writer) {
  writer->Begin("BlockRemoved", 2);
  writer->Name("block_hashes");
  writer->Hashes(options.hash_form, events);
  writer->Name("medium");
  writer->Text(MediumName(events.front().medium));
}

bool Alike(const BlockEvent& a, const BlockEvent& b) {
  return a.stored == b.stored && a.medium == b.medium;
}

// How many at the front share an event.
size_t RunOf(std::span<const BlockEvent> events) {
  size_t size = 1;
  while (size < events.size() && Alike(events[size], events.front())) ++size;
  return size;
}

size_t Runs(std::span<const BlockEvent> events) {
  size_t runs = 0;
  for (; !events.empty(); events = events.subspan(RunOf(events))) ++runs;
  return runs;
}

}  // namespace

std::string EventEncoder::Batch(double seconds, bool cleared,
                                std::span<const BlockEvent> events) const {
  std::string out;
  out.reserve(128 + 20 * events.size());
  Writer writer(options_.encoding, &out);
  writer.Array(3);
  writer.Seconds(seconds);
  writer.Array(Runs(events) + (cleared ? 1 : 0));
  if (cleared) writer.Begin("AllBlocksCleared", 0);
  while (!events.empty()) {
    const auto run = events.first(RunOf(events));
    run.front().stored ? WriteStored(options_, run, &writer) : WriteRemoved(options_, run, &writer);
    events = events.subspan(run.size());
  }
  // Some who read batches take three fields or none, so the rank is spelled out.
  writer.Nil();
  return out;
}

}  // namespace ems::kv_events
