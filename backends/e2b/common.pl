# What the scripts for files share; each goes behind it. args: OPERATION ARGUMENT...; paths are in hexadecimal. Says what there is to say on
# standard output, fields ended by NULs, and ends with 0; or "E" and a number of errno (10001: no regular file, 10002: the condition does not
# hold, 10003: it got shorter meanwhile, 10004: too many entries) and what it is about, and ends with 3.
use strict;
my $elf = ''; # of perl itself: Config, which knows the machine too, takes as long to load as all the rest here
if (open my $exe, '<', '/proc/self/exe') { read $exe, $elf, 20 }
my ($statx, $utimensat, $faccessat, $fallocate, $nofollow) =
    unpack('x18 v', $elf . "\0" x 20) == 62 ? (332, 280, 269, 285, 0400000) : (291, 88, 48, 47, 0100000);
my ($temp, $stage, @made, $errors); # of an operation: what must go when it fails; where to say why
umask 022;

sub fail {
    my ($e, $what) = ($_[0] + 0, defined $_[1] ? $_[1] : '');
    unlink $temp if defined $temp;
    my $dir = $stage;
    undef $stage; # what fails in the following has no other
    remove_tree($dir) if defined $dir;
    rmdir $_ for reverse @made;
    syswrite $errors || \*STDOUT, "E$e\0$what\0";
    exit 3;
}
sub say_all { my $t = join '', @_; my $at = 0; while ($at < length $t) { my $n = syswrite STDOUT, $t, 65536, $at; exit 4 unless $n; $at += $n } }
sub place {
    my $p = pack 'H*', shift;
    fail(36) if length $p > 4000;
    return $p =~ m{^/} ? $p : "/workspace/$p";
}

# What is there: undef and $! when nothing is. The fields of struct statx.
sub look {
    my ($p, $follow) = @_;
    my ($b, $cwd, $flags, $mask) = ("\0" x 256, -100, $follow ? 0 : 0x100, 0x17ff);
    return undef if syscall($statx, $cwd, $p, $flags, $mask, $b) != 0;
    my %s;
    @s{qw(uid gid mode)} = unpack 'L L S', substr $b, 20, 10;
    @s{qw(ino size)} = unpack 'Q Q', substr $b, 32, 16;
    my ($cs, $cn) = unpack 'q L', substr $b, 96, 12;
    my ($ms, $mn) = unpack 'q L', substr $b, 112, 12;
    my ($major, $minor) = unpack 'L L', substr $b, 136, 8;
    @s{qw(ctime mtime dev)} = ($cs * 1000000000 + $cn, $ms * 1000000000 + $mn, $major << 20 | $minor);
    my $f = $s{mode} & 0170000;
    $s{type} = { 0100000 => 'f', 0040000 => 'd', 0120000 => 'l', 0010000 => 'p', 0140000 => 's', 0020000 => 'v', 0060000 => 'v' }->{$f} || 'o';
    $s{target} = $s{type} eq 'l' ? readlink $p : '';
    return \%s;
}
sub record {
    my ($name, $s) = @_;
    return join '', map { (defined $_ ? $_ : '') . "\0" } $name, @$s{qw(type size)}, $s->{mode} & 07777, @$s{qw(mtime ctime ino dev uid target)};
}

# Perl's own -w knows nothing of read-only file systems.
sub may_write { my ($p, $cwd, $how) = ($_[0], -100, 2); return syscall($faccessat, $cwd, $p, $how) == 0 }

# KIND or KIND:dev,ino,mtime,ctime,size;...
sub holds {
    my ($cond, $s) = @_;
    my ($kind, $tags) = split /:/, $cond, 2;
    return 1 if $kind == 0;
    return defined $s if $kind == 1;
    return !defined $s if $kind == 2;
    my $same = defined $s && grep { $_ eq join ',', @$s{qw(dev ino mtime ctime size)} } split /;/, defined $tags ? $tags : '';
    return $kind == 3 ? $same : !$same;
}

# All of it is a directory then; false and $! when it cannot be.
sub make_path {
    my ($p, $mode) = @_;
    my $s = look($p, 1);
    if ($s) { return 1 if $s->{type} eq 'd'; $! = 20; return 0 }
    return 0 if $! != 2;
    my ($up, $name) = $p =~ m{^(.*?)/+([^/]+)/*$} or return 0;
    return 0 unless make_path($up eq '' ? '/' : $up, 0755);
    if (!mkdir $p, $mode) { my $e = $! + 0; my $again = look($p, 1); return 1 if $again && $again->{type} eq 'd'; $! = $e; return 0 }
    push @made, $p;
    chmod $mode, $p;
    return 1;
}
sub nearest {
    my $p = shift;
    while (1) {
        my $s = look($p, 1);
        if ($s) { fail(20) if $s->{type} ne 'd'; return $p }
        fail($!) if $! != 2;
        $p =~ s{/+[^/]*/*$}{};
        $p = '/' if $p eq '';
    }
}

# Where a write ends up: (directory, name, what is there).
sub target {
    my ($p, $no_links) = @_;
    for (0 .. 40) {
        fail(21) if $p =~ m{/$} || $p =~ m{/\.\.?$};
        my ($dir, $name) = $p =~ m{^(.*?)/+([^/]+)$} or fail(22);
        $dir = '/' if $dir eq '';
        my $s = look("$dir/$name", 0);
        fail($!) if !$s && $! != 2;
        if (!$s || $s->{type} ne 'l' || $no_links) {
            fail(21) if $s && $s->{type} eq 'd';
            fail(10001) if $s && !$no_links && $s->{type} ne 'f';
            fail(13) if $s && $s->{type} eq 'f' && !may_write("$dir/$name");
            return ($dir, $name, $s);
        }
        my $to = readlink "$dir/$name";
        fail($!) unless defined $to;
        $p = $to =~ m{^/} ? $to : "$dir/$to";
    }
    fail(40);
}

# Who looks and then acts in a directory does so alone among us.
sub alone {
    my $dir = shift;
    sysopen my $d, $dir, 0 or return undef;
    flock $d, 2;
    return $d;
}

sub remove_tree {
    my $p = shift;
    my $s = look($p, 0) or return;
    if ($s->{type} ne 'd') { unlink $p or $! == 2 or fail($!); return }
    if (!opendir my $d, $p) {
        chmod 0700, $p;
        opendir $d, $p or fail($!);
        closedir $d;
    }
    opendir my $d, $p or fail($!);
    chmod 0700, $p if !-w $p;
    remove_tree("$p/$_") for grep { $_ ne '.' && $_ ne '..' } readdir $d;
    closedir $d;
    rmdir $p or $! == 2 or fail($!);
}
sub set_time {
    my ($p, $ns, $flags) = @_;
    return if $ns eq '-';
    my $s = $ns >= 0 ? int($ns / 1000000000) : -int((999999999 - $ns) / 1000000000);
    my ($times, $cwd) = (pack('q q q q', 0, 0x3ffffffe, $s, $ns - $s * 1000000000), -100);
    syscall($utimensat, $cwd, $p, $times, $flags) == 0 or fail($!);
}
sub random_name { open my $f, '<:raw', '/dev/urandom' or fail($!); sysread $f, my $r, 12; return '.sandgate-' . unpack 'H*', $r }
