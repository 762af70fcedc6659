#include "tests/support/power_cut.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "fabric/net/socket.h"
#include "tests/support/paths.h"
#include "tests/support/power_log.h"

namespace ems::testing {
namespace {

namespace fs = std::filesystem;
using Loss = PowerCutOptions::Loss;

constexpr uint64_t kSector = 512;

struct Change {
  PowerRecord record;
  uint64_t at = 0;  // in the log
  std::string from, to, saved, old;
};

Status Failed(std::string_view what, const std::string& path) {
  return Error(StatusCode::kUnavailable, "power cut: cannot {} {}: {}", what, path,
               fabric::ErrnoText(errno));
}

// How many of `count` changes in a row are kept: often all or none, because what breaks is one file
// that is ahead of another.
size_t Kept(Loss loss, size_t count, std::mt19937_64& random) {
  const uint64_t dice = loss == Loss::kSome ? random() % 4 : loss == Loss::kNothing ? 0 : 1;
  return dice == 0 ? count : dice == 1 ? 0 : random() % (count + 1);
}

uint64_t InodeOf(const std::string& path) {
  struct stat file {};
  return ::lstat(path.c_str(), &file) == 0 ? file.st_ino : 0;
}

// A record that ends early was never followed by its operation.
Result<std::vector<Change>> ReadLog(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream contents;
  contents << file.rdbuf();
  const std::string log = contents.str();
  std::vector<Change> changes;
  for (uint64_t at = 0; at + sizeof(PowerRecord) <= log.size();) {
    Change change;
    change.at = at;
    std::memcpy(&change.record, log.data() + at, sizeof(PowerRecord));
    const PowerRecord& it = change.record;
    if (it.op > PowerOp::kRename) return Error(StatusCode::kDataLoss, "{} at {}", path, at);
    at += sizeof(PowerRecord);
    const auto take = [&](uint64_t bytes) {
      const std::string part = log.substr(std::min<uint64_t>(at, log.size()), bytes);
      at += bytes;
      return part;
    };
    change.from = take(it.from_bytes);
    change.to = take(it.to_bytes);
    change.saved = take(it.saved_bytes);
    change.old = take(it.old_bytes);
    if (at <= log.size()) changes.push_back(std::move(change));
  }
  return changes;
}

// One file. Threading: one thread.
class LossyFile final {
 public:
  // `changes`: those that are not synced, in their order.
  LossyFile(std::string path, std::vector<const Change*> changes)
      : path_(std::move(path)),
        changes_(std::move(changes)),
        fd_(::open(path_.c_str(), O_RDWR | O_CLOEXEC)) {}

  Status Lose(Loss loss, std::mt19937_64& random, uint64_t* lost) {
    if (!fd_.valid()) return Failed("open", path_);
    const size_t keep = Kept(loss, changes_.size(), random);
    for (size_t i = changes_.size(); i > keep; --i) {
      EMS_RETURN_IF_ERROR(Undo(*changes_[i - 1], 0));
      ++*lost;
    }
    if (keep == 0) return OkStatus();
    if (random() % 2 == 0) {
      EMS_RETURN_IF_ERROR(Tear(*changes_[keep - 1], random));
      ++*lost;
    }
    // Of the others each sector by itself, where later ones have not been kept.
    const uint64_t rarity = uint64_t{1} << (random() % 6);
    for (size_t i = keep; i > 0; --i) EMS_RETURN_IF_ERROR(Drop(*changes_[i - 1], rarity, random));
    return OkStatus();
  }

 private:
  // What the change did to bytes from `from` on is undone.
  Status Undo(const Change& change, uint64_t from) {
    const PowerRecord& it = change.record;
    const bool grew = it.op == PowerOp::kResize ? it.length > it.size_before
                                                : it.offset + it.length > it.size_before;
    const uint64_t size = std::max(it.size_before, grew ? from : 0);
    const bool shrank = it.op == PowerOp::kResize && !grew;
    if ((grew || shrank) && ::ftruncate(fd_.get(), static_cast<off_t>(size)) != 0)
      return Failed("resize", path_);
    const uint64_t begin = it.op == PowerOp::kResize ? it.length : it.offset;
    return PutBack(change, std::max(begin, from), begin + change.old.size());
  }

  Status Tear(const Change& change, std::mt19937_64& random) {
    const PowerRecord& it = change.record;
    const uint64_t first = it.offset / kSector + 1;
    const uint64_t end = (it.offset + it.length + kSector - 1) / kSector;
    if (it.op != PowerOp::kWrite || first >= end) return OkStatus();
    const uint64_t from = (first + random() % (end - first)) * kSector;
    for (uint64_t sector = from / kSector; sector < end; ++sector) settled_.insert(sector);
    return Undo(change, from);
  }

  Status Drop(const Change& change, uint64_t rarity, std::mt19937_64& random) {
    if (change.record.op != PowerOp::kWrite) return OkStatus();
    struct stat file {};
    if (::fstat(fd_.get(), &file) != 0) return Failed("look at", path_);
    const uint64_t begin = change.record.offset;
    // No further: that was appended, or cut off since.
    const uint64_t end = std::min(begin + change.old.size(), static_cast<uint64_t>(file.st_size));
    for (uint64_t at = begin; at < end;) {
      const uint64_t next = std::min(end, (at / kSector + 1) * kSector);
      if (!settled_.contains(at / kSector)) {
        if (random() % rarity == 0 && rarity > 1) {
          EMS_RETURN_IF_ERROR(PutBack(change, at, next));
        } else {
          settled_.insert(at / kSector);
        }
      }
      at = next;
    }
    return OkStatus();
  }

  // Bytes [from, to) as they were.
  Status PutBack(const Change& change, uint64_t from, uint64_t to) {
    if (from >= to) return OkStatus();
    const PowerRecord& it = change.record;
    const uint64_t begin = it.op == PowerOp::kResize ? it.length : it.offset;
    const auto bytes = std::string_view(change.old).substr(from - begin, to - from);
    const ssize_t n = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(from));
    return n == static_cast<ssize_t>(bytes.size()) ? OkStatus() : Failed("write", path_);
  }

  const std::string path_;
  const std::vector<const Change*> changes_;
  const fabric::Fd fd_;
  std::set<uint64_t> settled_;  // sectors that have what they keep
};

// The folder with all below. Threading: one thread.
class LossyFolder final {
 public:
  LossyFolder(std::string folder, const PowerCutOptions& options)
      : folder_(std::move(folder)),
        undo_(folder_ + kUndoSuffix),
        loss_(options.loss),
        random_(options.seed) {}

  Result<PowerCutReport> Cut() {
    EMS_ASSIGN_OR_RETURN(changes_, ReadLog(undo_ + kUndoLog));
    for (const Change& change : changes_) {
      if (change.record.op == PowerOp::kSync) {
        uint64_t& end = synced_[change.record.inode];
        end = std::max(end, change.record.offset);
      } else {
        ++report_.changes;
      }
    }
    EMS_RETURN_IF_ERROR(LoseBytes());
    EMS_RETURN_IF_ERROR(LoseNames());
    std::error_code error;
    fs::remove_all(undo_, error);
    return report_;
  }

 private:
  bool Synced(uint64_t inode, const Change& change) const {
    const auto it = synced_.find(inode);
    return it != synced_.end() && change.at < it->second;
  }
  static bool IsOfFile(const Change& change) {
    return change.record.op == PowerOp::kWrite || change.record.op == PowerOp::kResize;
  }

  Status LoseBytes() {
    std::map<uint64_t, std::vector<const Change*>> unsynced;
    for (const Change& change : changes_) {
      if (IsOfFile(change) && !Synced(change.record.inode, change))
        unsynced[change.record.inode].push_back(&change);
    }
    std::map<uint64_t, std::string> paths;
    for (const std::string& folder : {folder_, undo_}) {
      for (const auto& file : fs::recursive_directory_iterator(folder))
        paths[InodeOf(file.path())] = file.path();
    }
    for (const auto& [inode, changes] : unsynced) {
      report_.unsynced += changes.size();
      const auto path = paths.find(inode);
      if (loss_ == Loss::kNothing || path == paths.end()) continue;
      EMS_RETURN_IF_ERROR(LossyFile(path->second, changes).Lose(loss_, random_, &report_.lost));
    }
    return OkStatus();
  }

  Status LoseNames() {
    std::vector<const Change*> unsynced;
    for (const Change& change : changes_) {
      const PowerRecord& it = change.record;
      if (IsOfFile(change) || it.op == PowerOp::kSync) continue;
      const bool synced =
          Synced(it.folder, change) && (it.op != PowerOp::kRename || Synced(it.folder_to, change));
      if (!synced) unsynced.push_back(&change);
    }
    report_.unsynced += unsynced.size();
    const size_t keep = Kept(loss_, unsynced.size(), random_);
    for (size_t i = unsynced.size(); i > keep; --i) {
      EMS_RETURN_IF_ERROR(Undo(*unsynced[i - 1]));
      ++report_.lost;
    }
    return OkStatus();
  }

  Status Undo(const Change& change) {
    const PowerRecord& it = change.record;
    const std::string folder = PathOf(it.folder);
    if (folder.empty()) return OkStatus();  // it is not there any more, nor what was in it
    const std::string from = folder + "/" + change.from;
    switch (it.op) {
      case PowerOp::kMake: {
        std::error_code error;
        fs::remove_all(from, error);
        return error ? Failed("remove", from) : OkStatus();
      }
      case PowerOp::kRemove:
        if (!change.saved.empty()) return Restore(change, from);
        if (::mkdir(from.c_str(), 0700) != 0 && errno != EEXIST) return Failed("make", from);
        made_again_[it.inode] = InodeOf(from);
        return OkStatus();
      default: {
        const std::string to = PathOf(it.folder_to) + "/" + change.to;
        if (InodeOf(to) != it.inode) return OkStatus();  // it did not come to it
        if (::rename(to.c_str(), from.c_str()) != 0) return Failed("rename", to);
        return change.saved.empty() ? OkStatus() : Restore(change, to);
      }
    }
  }

  Status Restore(const Change& change, const std::string& path) {
    const std::string saved = undo_ + "/" + change.saved;
    if (InodeOf(saved) == InodeOf(path)) return OkStatus();  // it was not removed after all
    return ::rename(saved.c_str(), path.c_str()) == 0 ? OkStatus() : Failed("restore", path);
  }

  // Empty: it is gone.
  std::string PathOf(uint64_t inode) const {
    const auto again = made_again_.find(inode);
    if (again != made_again_.end()) inode = again->second;
    if (InodeOf(folder_) == inode) return folder_;
    for (const auto& file : fs::recursive_directory_iterator(folder_)) {
      if (file.is_directory() && InodeOf(file.path()) == inode) return file.path();
    }
    return "";
  }

  const std::string folder_;
  const std::string undo_;
  const Loss loss_;
  std::mt19937_64 random_;
  std::vector<Change> changes_;
  std::map<uint64_t, uint64_t> synced_;      // inode → all in front of this in the log
  std::map<uint64_t, uint64_t> made_again_;  // inodes of folders that had been removed
  PowerCutReport report_;
};

}  // namespace

std::vector<std::string> PowerLossEnvironment(const std::string& folder,
                                              const std::string& lost_syncs) {
  return {"LD_PRELOAD=" + BinDir() + "/../tests/bin/libpower_loss.so",
          std::string(kPowerLossVariable) + "=" + folder,
          std::string(kLostSyncsVariable) + "=" + lost_syncs};
}

std::string PowerCutReport::ToText() const {
  return fmt::format("{} changes, {} of them unsynced, {} lost", changes, unsynced, lost);
}

Result<PowerCutReport> CutPower(const std::string& folder, const PowerCutOptions& options) {
  std::error_code error;
  if (!fs::exists(folder + kUndoSuffix, error)) return PowerCutReport();
  return LossyFolder(folder, options).Cut();
}

}  // namespace ems::testing
