#include "mp_server/ssd/moved_object.h"

#include <utility>

namespace ems::ssd {

Result<std::unique_ptr<DirtyObject>> MovedObject::Read(RegionFiles* files, int fd,
                                                       uint64_t store_id, const ObjectName& name,
                                                       const Row& row) {
  const RecordBlocks blocks(row);
  AlignedBuffer memory;
  const MutableBytes bytes = memory.Take(blocks.bytes());
  EMS_RETURN_IF_ERROR(files->Read(fd, bytes, blocks.begin));
  const MutableBytes record = bytes.subspan(blocks.skip);
  std::unique_ptr<MovedObject> object(new MovedObject(std::move(memory), record, row));
  object->sums_.resize(PieceCount(row.value_bytes));
  if (CheckHead(record, Expect(store_id, name, row)).verdict != HeadVerdict::kGood ||
      !CheckValue(object->value(), row.value_checksum, object->sums_))
    return Error(StatusCode::kDataLoss, "a record of region {} is damaged", row.region);
  return std::unique_ptr<DirtyObject>(std::move(object));
}

std::string_view MovedObject::key() const {
  return AsText(ConstBytes(record_)
                    .subspan(sizeof(RecordHeader) + shape_.table_bytes)
                    .first(shape_.key_bytes));
}

ConstBytes MovedObject::value() const {
  return ConstBytes(record_).subspan(shape_.payload_offset()).first(shape_.value_bytes);
}

}  // namespace ems::ssd
