#pragma once
// The observer of objects that are stored on the SSD or dropped from it.
#include "mp_server/ssd/disk/record.h"

namespace ems::ssd {

// Called under a lock of the index: must be cheap and take no lock. Threading: thread-safe.
class StoredObserver {
 public:
  virtual ~StoredObserver() = default;
  virtual void OnStored(const ObjectName& name) = 0;
  virtual void OnDropped(const ObjectName& name) = 0;
};

}  // namespace ems::ssd
