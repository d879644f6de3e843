# Receives a snapshot in the current directory, a workspace. Prints the commits that are here already and an
# empty line; reads lines with tags and an empty line, and then a pack. At the end HEAD, the branch and the
# files are those that were sent, and what was here before is kept under refs/oubliette/kept.
# Arguments: the commit of HEAD, its branch, the snapshot, the name for what is kept, the shallow commits.
head=$1 branch=$2 snapshot=$3 kept=$4 shallow=$5
export LC_ALL=C
fail() { echo "$*" >&2; exit 1; }
command -v git > /dev/null || fail "git is not installed in the container"
unset GIT_INDEX_FILE
# The author of commits that are made here, where git does not know one.
git config user.name > /dev/null || export GIT_AUTHOR_NAME=Oubliette GIT_COMMITTER_NAME=Oubliette
git config user.email > /dev/null ||
    export GIT_AUTHOR_EMAIL=noreply@oubliette.invalid GIT_COMMITTER_EMAIL=noreply@oubliette.invalid
if [ ! -d .git ] && [ ! -f .git ]; then git init -q . || exit 1; fi
dir=$(git rev-parse --absolute-git-dir) || exit 1
ours=$dir/oubliette
mkdir -p "$ours" || exit 1
git for-each-ref --format='%(objectname)' | sort -u | head -n 2000
echo
: > "$ours/tags"
while read -r object name; do
    [ -n "$object" ] || break
    echo "update $name $object" >> "$ours/tags"
done
git index-pack --stdin --fix-thin > /dev/null || fail "the files did not arrive"
[ -z "$shallow" ] || echo "$shallow" | tr ' ' '\n' > "$dir/shallow"
git rev-parse -q --verify "$snapshot^{commit}" > /dev/null || fail "the snapshot did not arrive"
rm -f "$dir/index.lock" "$dir/HEAD.lock"
if [ -n "$kept" ] && git rev-parse -q --verify refs/oubliette/sent > /dev/null; then
    index=$ours/kept-index
    if [ -f "$ours/sent-index" ]; then cp -p "$ours/sent-index" "$index"; else rm -f "$index"; fi
    GIT_INDEX_FILE=$index git add -A --ignore-errors -- :/ > /dev/null 2>&1
    tree=$(GIT_INDEX_FILE=$index git write-tree) || exit 1
    parent=$(git rev-parse -q --verify 'HEAD^{commit}')
    left=$parent
    if [ -z "$parent" ] || [ "$(git rev-parse "$parent^{tree}")" != "$tree" ]; then
        left=$(git commit-tree "$tree" ${parent:+-p "$parent"} -m "Files that were not committed") || exit 1
    fi
    git update-ref "refs/oubliette/kept/$kept" "$left" || exit 1
    rm -f "$index"
fi
# What an agent had under way belongs to files that go away.
rm -rf "$dir"/MERGE_* "$dir"/CHERRY_PICK_HEAD "$dir"/REVERT_HEAD "$dir"/rebase-merge "$dir"/rebase-apply \
    "$dir"/BISECT_* "$dir"/sequencer "$ours/sent-index"
git update-ref refs/oubliette/sent "$snapshot" || exit 1
git update-ref --stdin < "$ours/tags" || exit 1
# Files that git ignores stay: they are what builds have made.
git read-tree --reset -u "$snapshot" && git clean -ffdq || fail "the files could not be written"
cp -p "$dir/index" "$ours/sent-index" || exit 1
if [ -z "$head" ]; then
    git update-ref -d "refs/heads/$branch" 2> /dev/null
    git symbolic-ref HEAD "refs/heads/$branch" && git read-tree --empty
elif [ -z "$branch" ]; then
    git update-ref --no-deref HEAD "$head" && git read-tree -m HEAD
else
    git update-ref "refs/heads/$branch" "$head" && git symbolic-ref HEAD "refs/heads/$branch" &&
        git read-tree -m HEAD
fi || fail "HEAD could not be set"
echo done
