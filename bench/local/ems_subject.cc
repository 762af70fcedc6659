#include "bench/local/ems_subject.h"

#include <algorithm>

namespace ems::bench {
namespace {

constexpr size_t kRemoveBatch = 4096;

}  // namespace

EmsSubject::EmsSubject(Client* client, std::vector<pid_t> server_pids, const ValueSet* values)
    : client_(client), server_pids_(std::move(server_pids)), values_(values) {
  const uint64_t count = values->count();
  for (uint64_t i = count; i < kLookupKeys; ++i) {
    strange_keys_.push_back(fmt::format("local/never-stored/{}", i));
  }
  for (uint64_t i = 0; i < count; ++i) lookup_items_.push_back({.key = values->key(i)});
  for (const std::string& key : strange_keys_) lookup_items_.push_back({.key = key});
  for (uint64_t i = 0; count >= kLookupKeys && i < kLookupKeys; ++i) {
    lookup_items_.push_back({.key = values->key(i)});
  }
}

Result<std::unique_ptr<EmsSubject>> EmsSubject::Make(Client* client, std::vector<pid_t> server_pids,
                                                     uint64_t registered_bytes,
                                                     const ValueSet* values) {
  std::unique_ptr<EmsSubject> made(new EmsSubject(client, std::move(server_pids), values));
  EMS_ASSIGN_OR_RETURN(made->registered_, client->AllocateBuffer(registered_bytes));
  return made;
}

std::vector<SideOp> EmsSubject::ops() const { return {std::begin(kAllOps), std::end(kAllOps)}; }

MutableBytes EmsSubject::PutMemory(SideOp op) const {
  return op == SideOp::kPutOrdinary ? MutableBytes() : registered_.bytes();
}

Status EmsSubject::Call(SideOp op, uint32_t /*caller*/, const Stretch& stretch, uint64_t first,
                        uint64_t count) {
  const std::string_view key = stretch.keys[first];
  switch (op) {
    case SideOp::kGet:
      return Copy(key, stretch.Buffer(first), Verify::kNever);
    case SideOp::kGetChecked:
      return Copy(key, stretch.Buffer(first), Verify::kAlways);
    case SideOp::kGetView:
      return Touch(key);
    case SideOp::kExists: {
      const Result<bool> found = client_->Exists(key);
      return found.ok() && !*found ? Miss() : found.status();
    }
    case SideOp::kLookup:
      return Lookup(stretch.objects[first]);
    case SideOp::kPut:
    case SideOp::kPutOrdinary:
      return client_->Put(key, ConstBytes(stretch.Buffer(first)), {.overwrite = true});
    case SideOp::kPutBatch:
      return PutMany(stretch, first, count);
  }
  return Error(StatusCode::kUnimplemented, "an operation of number {}", static_cast<int>(op));
}

Status EmsSubject::Copy(std::string_view key, MutableBytes into, Verify verify) {
  const Result<uint64_t> bytes = client_->Get(key, into, {.verify = verify});
  if (!bytes.ok()) return bytes.status();
  if (*bytes == into.size()) return OkStatus();
  return Error(StatusCode::kDataLoss, "{} bytes came back, {} were stored", *bytes, into.size());
}

// Getting the view and letting it go, as a reader does that is done with it.
Status EmsSubject::Touch(std::string_view key) {
  const Result<ObjectView> view = client_->GetView(key, {.verify = Verify::kNever});
  if (!view.ok()) return view.status();
  if (view->size_bytes() == values_->value_bytes()) return OkStatus();
  return Error(StatusCode::kDataLoss, "a view of {} bytes, {} were stored", view->size_bytes(),
               values_->value_bytes());
}

Status EmsSubject::Lookup(uint64_t object) {
  const uint64_t count = values_->count();
  const uint64_t first = count >= kLookupKeys ? object : 0;
  const auto answers = client_->MultiExists(std::span(lookup_items_).subspan(first, kLookupKeys));
  const uint64_t stored = std::min(count, kLookupKeys);
  for (uint64_t i = 0; i < kLookupKeys; ++i) {
    if (!answers[i].ok()) return answers[i].status();
    if (*answers[i] == (i < stored)) continue;
    return i < stored ? Miss() : Error(StatusCode::kDataLoss, "a key that was never stored exists");
  }
  return OkStatus();
}

Status EmsSubject::PutMany(const Stretch& stretch, uint64_t first, uint64_t count) {
  std::vector<PutItem> items(count);
  for (uint64_t i = 0; i < count; ++i) {
    items[i].key = stretch.keys[first + i];
    items[i].value = ConstBytes(stretch.Buffer(first + i));
  }
  for (const Status& status : client_->MultiPut(items, {.overwrite = true})) {
    EMS_RETURN_IF_ERROR(status);
  }
  return OkStatus();
}

Status EmsSubject::View(uint64_t object, const std::function<void(ConstBytes)>& look) {
  EMS_ASSIGN_OR_RETURN(const ObjectView view,
                       client_->GetView(values_->key(object), {.verify = Verify::kNever}));
  look(view.bytes());
  return OkStatus();
}

Status EmsSubject::RemoveAll() {
  const auto keys = std::span<const KeyItem>(lookup_items_).first(values_->count());
  for (size_t first = 0; first < keys.size(); first += kRemoveBatch) {
    const auto part = keys.subspan(first, std::min(kRemoveBatch, keys.size() - first));
    for (const Status& status : client_->MultiRemove(part)) {
      if (status.code() != StatusCode::kNotFound) EMS_RETURN_IF_ERROR(status);
    }
  }
  return OkStatus();
}

}  // namespace ems::bench
