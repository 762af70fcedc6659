#include "mp_server/store/object_pin.h"

#include <utility>

#include "common/check.h"
#include "common/checksum.h"
#include "mp_server/store/namespace_objects.h"

namespace ems::server {

void ObjectPin::Unpin::operator()(ObjectEntry* entry) const { objects->Unpin(entry); }

ObjectPin::ObjectPin(std::shared_ptr<NamespaceObjects> objects, ObjectEntry* entry)
    : entry_(entry, Unpin{std::move(objects)}) {}

ConstBytes ObjectPin::value() const { return entry_->value(); }
uint64_t ObjectPin::checksum() const { return entry_->checksum; }
std::span<const uint64_t> ObjectPin::piece_sums() const { return entry_->piece_sums; }
std::string_view ObjectPin::key() const { return entry_->key(); }
uint16_t ObjectPin::slot() const { return entry_->slot; }

bool ObjectPin::linked() const {
  return (entry_->holds.load(std::memory_order_acquire) & kLinked) != 0;
}

bool ObjectPin::Intact() const {
  return CombinePieces(piece_sums()) == checksum() && Checksum(value()) == checksum();
}

void ObjectPin::DropDamaged() const { entry_.get_deleter().objects->DropDamaged(entry_.get()); }

bool ObjectPin::settling() const { return entry_->settling.load(std::memory_order_acquire); }

void ObjectPin::Settle() const { entry_->settling.store(false, std::memory_order_release); }

void ObjectPin::BeginWrite() const { entry_->unwritten.fetch_add(1, std::memory_order_relaxed); }

void ObjectPin::EndWrite() const { entry_->unwritten.fetch_sub(1, std::memory_order_relaxed); }

void ObjectPin::Withdraw() const {
  Settle();
  entry_.get_deleter().objects->Withdraw(entry_.get());
}

void ObjectPin::ForgetKept() const {
  NamespaceObjects& objects = *entry_.get_deleter().objects;
  if (ObjectEntry* const kept = objects.kept().Take(MakeVictim(entry_.get())); kept != nullptr)
    objects.Unpin(kept);
}

ObjectPin ObjectPin::Share() const {
  const uint32_t before = entry_->holds.fetch_add(1, std::memory_order_relaxed);
  EMS_CHECK((before & ~kLinked) > 0, "sharing a pin of an object with holds {:#x}", before);
  return {entry_.get_deleter().objects, entry_.get()};
}

}  // namespace ems::server
