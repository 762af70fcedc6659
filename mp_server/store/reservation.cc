#include "mp_server/store/reservation.h"

#include <utility>

#include "mp_server/store/namespace_objects.h"

namespace ems::server {

void Reservation::Abort::operator()(ObjectEntry* entry) const { objects->Drop(entry, 1); }

Reservation::Reservation(std::shared_ptr<NamespaceStore> store, NamespaceObjects* objects,
                         ObjectEntry* entry, uint32_t slot_losses)
    : entry_(entry, Abort{std::move(store), objects}), slot_losses_(slot_losses) {}

MutableBytes Reservation::value() const { return {entry_->payload, entry_->value_bytes}; }
std::span<uint64_t> Reservation::piece_sums() const { return entry_->piece_sums; }
NamespaceRef Reservation::ns() const { return entry_.get_deleter().objects->ref(); }
Hash128 Reservation::hash() const { return entry_->hash; }
std::string_view Reservation::key() const { return entry_->key(); }

}  // namespace ems::server
