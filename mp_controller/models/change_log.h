#pragma once
// The numbered changes of a list: followers are sent these instead of the whole list.
//
// Invariant: a server that had list N and applies After(N) has the list of now. Bound: kKept
// changes; who is further behind gets all of it.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

namespace ems::controller {

// Threading: one thread.
class ChangeLog final {
 public:
  static constexpr size_t kKept = 4096;

  // Lists of an earlier life have lower numbers, which say nothing here.
  void Begin(uint64_t number) { number_ = floor_ = number; }
  uint64_t number() const { return number_; }
  // Of all rows: how many, and their hashes, one xor the other.
  size_t rows() const { return hashes_.size(); }
  uint64_t checksum() const { return checksum_; }

  // A row was added, or is another one: its hash.
  void Put(uint32_t id, uint64_t hash);
  void Remove(uint32_t id);

  struct Changes {
    bool whole = false;  // not known any more: all of it
    std::vector<uint32_t> changed, removed;
  };
  // What is not as in list `since`.   Cost: O(changes since then).
  Changes After(uint64_t since) const;

 private:
  struct Change {
    uint64_t number = 0;
    uint32_t id = 0;
  };
  void Note(uint32_t id);

  uint64_t number_ = 1;
  uint64_t floor_ = 1;  // the oldest list of which all changes are known
  uint64_t checksum_ = 0;
  std::map<uint32_t, uint64_t> hashes_;  // by id
  std::deque<Change> changes_;
};

}  // namespace ems::controller
